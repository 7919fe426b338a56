"""AdaCons against the mean on 8 and 32 replicas, each at its best rate."""

import dataclasses

from experiments.adacons import regression
from experiments.classification import Classification, Problem, verdicts
from experiments.cnn.experiment import EXPERIMENT as CNN
from experiments.search import Search

SOURCE = "Choukroun et al., arXiv 2411.03742"
RULES = ("mean", "adacons")

PROBLEMS = (
    Problem("clicks", "sgd", "decay", 1, RULES, batch=32, exponents=(5, 6, 7, 8)),
    Problem("digits", "momentum", "decay", 6, RULES),
)

INTRODUCTION = f"""\
AdaCons weighs gradients by how far each agrees with their mean; `AdaCons(rescale=True)` here, with
which one replica's learning rate can stay ([rules](rules.md#adacons)). *Published*, in figures: it
is ahead of the mean on a linear regression, on ResNet-50 and RetinaNet, and on DLRM's click-through
rates, for several numbers of workers. Columns of the tables are those of the two-layer CNN, with
its grids, seeds and tests.

The authors' linear regression, 500 updates, as [docs/rules.md](rules.md#adacons) has it: the loss
at the end, of ten seeds. Their step goes along the direction to the point nearest to the optimum,
which has to be known; a line search on the loss does not need that.

{regression.table()}

The classification is the two-layer CNN on digits; the mean's runs are those of its section. The
clicks are drawn from a stated model (`experiments/data.py`): four counts and five fields of 32 to
512 values, most of them rare, which matter in pairs. The model has DLRM's form: a table for each
field, dense layers on the counts, inner products of all vectors, dense layers on these; 8,986
weights, batch 32 on each replica, one epoch, as DLRM is trained. What is measured is the AUC, and
the target is one replica's less 0.01.

*Why, as we think.* In the regression all gradients lie almost along one direction, and there it
counts which of them agree. In the other two they are mostly orthogonal. Then <gᵢ, ḡ> is ‖gᵢ‖²/N, so
that αᵢ is proportional to ‖gᵢ‖ and all cᵢ are the same: AdaCons is the mean, and needs the mean's
learning rate. The published gains are of batches so large that gradients agree."""


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

    def verdicts(self, found):
        """Return the three claims with what was found of them."""
        claims = {
            "clicks": "AdaCons is ahead of the mean on click-through rates (DLRM)",
            "digits": "AdaCons is ahead of the mean on image classification",
        }
        own = {data: [one for one in found if one.problem.data == data] for data in claims}
        return [
            (
                "AdaCons converges much better than the mean on a linear regression",
                f"{SOURCE}, figure 2",
                regression.verdict(),
            ),
            (claims["digits"], f"{SOURCE}, figure 3", verdicts.tuned(own["digits"])),
            (claims["clicks"], f"{SOURCE}, figure 5", verdicts.tuned(own["clicks"])),
        ]


EXPERIMENT = AdaConsExperiment(
    problems=PROBLEMS,
    replicas=(8, 32),
    search=Search(base=0.01, exponents=(-2, -1, 0, 1, 2)),
    introduction=INTRODUCTION,
)
