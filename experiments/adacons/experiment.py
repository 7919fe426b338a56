"""AdaCons against the mean on 8 and 32 replicas, each at its best learning rate."""

import dataclasses

from experiments.adacons import regression
from experiments.classification import Classification, Problem, verdicts
from experiments.cnn.experiment import EXPERIMENT as CNN
from experiments.experiment import Claim
from experiments.search import Search

SOURCE = "Choukroun et al., arXiv 2411.03742"
RULES = ("mean", "adacons")

PROBLEMS = (
    Problem("clicks", "sgd", "decay", 1, RULES, batch=32, exponents=(5, 6, 7, 8)),
    Problem("digits", "momentum", "decay", 6, RULES),
)


@dataclasses.dataclass(frozen=True)
class AdaConsExperiment(Classification):
    """AdaCons and the mean."""

    name = "adacons"
    title = "AdaCons: regression, classification, clicks"

    def model_of(self, name):
        """Return the model for a data set."""
        from experiments import data
        from experiments.models.clicks import Clicks

        return Clicks(data.COUNTS, data.FIELDS) if name == "clicks" else CNN.model_of(name)

    def small(self):
        """Return it on clicks, of which few are seen."""
        small = super().small()
        return dataclasses.replace(small, replicas=(32,))

    def report(self, results, pictures):
        """Return the authors' regression, and the tables and figures of all finished runs."""
        own = super().report(results, pictures)
        own.body = f"### Linear regression\n\n{regression.table()}\n\n{own.body}"
        return own

    def verdicts(self, found):
        """Return the three claims with their verdicts."""
        claims = {
            "clicks": "AdaCons is ahead of the mean on click-through rates (DLRM)",
            "digits": "AdaCons is ahead of the mean on image classification",
        }
        own = {data: [one for one in found if one.problem.data == data] for data in claims}
        return [
            Claim(
                "AdaCons converges much better than the mean on a linear regression",
                f"{SOURCE}, figure 2",
                regression.verdicts(),
            ),
            Claim(claims["digits"], f"{SOURCE}, figure 3", verdicts.tuned(own["digits"])),
            Claim(claims["clicks"], f"{SOURCE}, figure 5", verdicts.tuned(own["clicks"])),
        ]


EXPERIMENT = AdaConsExperiment(
    problems=PROBLEMS,
    replicas=(8, 32),
    search=Search(base=0.01, exponents=(-2, -1, 0, 1, 2)),
)
