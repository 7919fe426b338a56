"""AdaCons against the mean: a regression, a classification, clicks."""
