"""How tables and `--list` cite the sources."""

HANDOUT = "Karagiannis 2023, handout 4 on Bayesian learning by SGLD"
NOTES = "Ji 2023, notes on SG-MCMC"
SLIDES = "Liang 2024, slides on adaptively weighted SG-MCMC"
LIGHTNING_POST = "post on Metropolis, SGLD and cyclical SG-MCMC in Lightning"
BACKPROP_POST = "post on SGLD and Bayes by Backprop, 2022"
