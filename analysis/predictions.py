"""The theory's predictions, each a statistic of the trained models, and the verdicts on them."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata

from analysis.curves import measured
from analysis.measurements import Measurements
from analysis.scaling import compare, marginal_gains
from analysis.statistics import Estimate, mean_of, pooled, regression
from analysis.verdicts import Claim, Finding, Prediction, Records, Verdict, decide
from jaxlayers.refusal import Refusal

IDENTITY = 1e-5  # of 1 + bias: what float32 leaves of an identity
ROUNDING = 2.0**-23  # likewise: the evidence is float32
FEW = 0.05  # of the second differences: so many violations are few
SLACK = 0.01  # of the error rate: an equality has samples on both of its sides


def verdicts(models: Sequence[Measurements]) -> list[Verdict]:
    """A verdict on every prediction; on what the models do not tell, "not measured" with the reason.

    That diversity is a cause is asked only of models some of which were rewarded for it in training.
    """
    regularised = any(model.regulariser > 0 for model in models)
    return decide((*PREDICTIONS, CAUSE) if regularised else PREDICTIONS, models)


def _label(model: Measurements) -> dict[str, object]:
    return {"task": model.task, "architecture": model.variant, "depth": model.depth, "seed": model.seed}


def _number(name: str, estimate: Estimate) -> dict[str, object]:
    return {name: float(estimate.value), "low": float(estimate.low), "high": float(estimate.high)}


def _pooled(models: Sequence[Measurements], of: Callable[[Measurements], Estimate]) -> Estimate:
    curve = [(model.task, model.variant) for model in models]
    depth, seed = [model.depth for model in models], [model.seed for model in models]
    return pooled([of(model) for model in models], curve, depth, seed)


def identity(models: Sequence[Measurements]) -> Finding:
    """No sample: the model's own loss against bias - diversity, example by example."""
    data: Records = []
    for model in models:
        residual = np.abs(model.loss - (model.bias - model.diversity))
        relative = residual / (1 + model.bias)
        data.append({**_label(model), "residual": float(residual.max()), "relative": float(relative.max())})
    if not data:
        raise Refusal("there is no model")
    worst = Estimate(max(record["relative"] for record in data), ROUNDING, 1)
    claim = Claim("the largest residual in units of 1 + bias", "below", worst, IDENTITY, sampled=False)
    return Finding((claim,), data)


def across_models(models: Sequence[Measurements]) -> Finding:
    """Accuracy on bias and diversity, all standardised within a task, in one regression with a term a task.

    The seeds of one configuration are no independent evidence of a relation between configurations: they
    are a cluster. Bias and diversity nearly coincide, so their coefficients are large and of wide intervals;
    those of ln bias and ρ, which do not grow with the number of members, stand beside them in the data.
    """
    configuration = {model: (model.task, model.variant, model.depth) for model in models}
    tasks = sorted({model.task for model in models})
    number = {task: len({c for c in configuration.values() if c[0] == task}) for task in tasks}
    tasks = [task for task in tasks if number[task] >= 2]
    used = [model for model in models if model.task in tasks]
    if sum(number[task] - 1 for task in tasks) < 3:
        raise Refusal("two coefficients need three configurations more than tasks")
    names = {c: i for i, c in enumerate(dict.fromkeys(configuration[model] for model in used))}
    cluster = np.array([names[configuration[model]] for model in used])
    task = np.array([tasks.index(model.task) for model in used])
    dummies = np.eye(len(tasks))[task]

    def standard(values: Sequence[float]) -> Float[np.ndarray, " M"]:
        centred = np.array(values) - (dummies @ (dummies.T @ values / dummies.sum(0)))
        spread = np.sqrt(dummies.T @ centred**2 / dummies.sum(0))
        if spread.min() <= 1e-12:
            raise Refusal(f"the models of task {tasks[int(spread.argmin())]!r} do not differ")
        return centred / (dummies @ spread)

    accuracy = standard([float(model.accuracy.value) for model in used])
    terms = {
        "bias": [model.bias.mean() for model in used],
        "diversity": [model.diversity.mean() for model in used],
        "ln bias": [np.log(model.bias.mean()) for model in used],
        "ρ": [model.ratio for model in used],
    }
    coefficients: dict[str, Estimate] = {}
    for pair in (("bias", "diversity"), ("ln bias", "ρ")):
        design = np.column_stack([*(standard(terms[term]) for term in pair), dummies])
        found = regression(accuracy, design, cluster)
        coefficients |= {term: found[i] for i, term in enumerate(pair)}
    data: Records = [
        {"kind": "coefficient", "term": term, **_number("coefficient", estimate)}
        for term, estimate in coefficients.items()
    ]
    for i, model in enumerate(used):
        numbers = {term: float(values[i]) for term, values in terms.items()}
        data.append({"kind": "model", **_label(model), "accuracy": float(model.accuracy.value), **numbers})
    return Finding(
        (
            Claim("the coefficient of bias on accuracy", "below", coefficients["bias"]),
            Claim("the coefficient of diversity on accuracy", "above", coefficients["diversity"]),
        ),
        data,
    )


def within_models(models: Sequence[Measurements]) -> Finding:
    """Correctness on bias, diversity and their product, example by example, standardised within a model.

    A linear probability model: with two classes the loss alone decides what is correct, and a logistic one
    has no finite coefficients.
    """
    used = [m for m in models if min(m.correct.std(), m.bias.std(), m.diversity.std()) > 0]
    if not used:
        raise Refusal("no model is right on some examples and wrong on others")

    def fitted(model: Measurements, part: Int[np.ndarray, " n"] | slice = slice(None)) -> Estimate:
        b, d = ((x - x.mean()) / x.std() for x in (model.bias[part], model.diversity[part]))
        design = np.column_stack([np.ones_like(b), b, d, b * d])
        return regression(model.correct[part].astype(float), design, model.group[part])

    interaction = _pooled(used, lambda model: fitted(model)[3])
    quartiles = {model: np.array_split(np.argsort(model.bias, kind="stable"), 4) for model in used}
    data: Records = []
    for task, architecture in dict.fromkeys((model.task, model.variant) for model in used):
        some = [model for model in used if (model.task, model.variant) == (task, architecture)]
        for q in range(4):

            def slope(model: Measurements, q: int = q) -> Estimate:
                part = quartiles[model][q]
                return fitted(model, part)[2] * (model.diversity.std() / model.diversity[part].std())

            bias = float(np.mean([model.bias[quartiles[model][q]].mean() for model in some]))
            where = {"task": task, "architecture": architecture, "quartile": q + 1, "bias": bias}
            data.append(where | _number("slope", _pooled(some, slope)))
    name = "the interaction of bias and diversity on correctness"
    return Finding((Claim(name, "above", interaction),), data)


def added_layers(models: Sequence[Measurements]) -> Finding:
    """Spearman's correlation over the steps from a depth to the next, ranked within a curve.

    The seeds of one step are no independent evidence of a relation between steps: their means are ranked.
    The error is that of Fisher's z of ranks (Fieller, Hartley & Pearson 1957), a mean a curve being fitted.
    """
    used = measured(models, depths=3)
    steps = [(-np.diff(curve.loss), np.diff(curve.values(lambda model: model.ratio))) for curve in used]
    number = sum(len(curve.depths) - 1 for curve in used)
    freedom = number - len(used) - 2
    if freedom < 1:
        raise Refusal(f"{number} steps from a depth to the next are too few for a correlation")
    ranks = [[rankdata(x.mean(0)) - x.shape[1] / 2 - 0.5 for x in pair] for pair in steps]
    gain, change = (np.concatenate([pair[i] for pair in ranks]) for i in (0, 1))
    size = np.sqrt((gain @ gain) * (change @ change))
    perfect = 1 - 6 / (number**3 - number)  # half-way to the next lower one
    z = np.arctanh(np.clip(gain @ change / size if size else 0.0, -perfect, perfect))
    correlation = Estimate(float(z), float(np.sqrt(1.06 / freedom)), freedom)
    data: Records = [
        {
            **curve.name,
            "seed": int(seed),
            "from_depth": int(curve.depths[i]),
            "to_depth": int(curve.depths[i + 1]),
            "gain": float(gain[s, i]),
            "ratio_change": float(change[s, i]),
        }
        for curve, (gain, change) in zip(used, steps, strict=True)
        for s, seed in enumerate(curve.seeds)
        for i in range(len(curve.depths) - 1)
    ]
    name = "the rank correlation of gain and change in ρ"
    return Finding((Claim(name, "above", correlation, shown=np.tanh),), data)


def diminishing(models: Sequence[Measurements]) -> Finding:
    """Over members, how rare violations of submodularity are; over trained depths, how gains change."""
    used = measured(models, depths=3)
    gains = [(curve, marginal_gains(curve.depths, curve.loss)) for curve in used]
    data: Records = [
        {"kind": "depth", **curve.name, "depth": float(x), **_number("gain", gain)}
        for curve, g in gains
        for x, gain in zip(g.x, g.gain, strict=True)
    ]
    for model in models:
        found = model.performance
        ratio = float(found["ratio"].value) if "ratio" in found else None  # γ needs the whole lattice
        rate = _number("violation_rate", found["violation_rate"])
        data.append({"kind": "members", **_label(model), **rate, "submodularity_ratio": ratio})
    return Finding(
        (
            Claim(
                "the violation rate of submodularity",
                "below",
                _pooled(models, lambda model: model.performance["violation_rate"]),
                threshold=FEW,
            ),
            Claim(
                "the change of the gain from layer to layer",
                "below",
                mean_of([g.mean_curvature for _, g in gains]),
            ),
        ),
        data,
    )


def logarithm(models: Sequence[Measurements]) -> Finding:
    """Which of the other forms extrapolates best is asked anew in every resample of the seeds."""
    data: Records = []
    leads = []
    for curve in measured(models, depths=4):
        fits = {fit.form.name: fit for fit in compare(curve.depths, curve.loss)}
        log = fits.pop("log")
        lead = min(fit.holdout_error for fit in fits.values()) - log.holdout_error
        resampled = np.min([fit.resampled_errors for fit in fits.values()], axis=0) - log.resampled_errors
        leads.append(Estimate(lead, float(resampled.std()), len(curve.seeds) - 1))
        for fit in (log, *fits.values()):
            error = Estimate(fit.holdout_error, float(fit.resampled_errors.std()), len(curve.seeds) - 1)
            found = _number("holdout_error", error) | {"aicc": fit.aicc} | fit.parameters
            data.append({**curve.name, "form": fit.form.name, **found})
    name = "the held-out error of the best other form less that of the logarithm"
    return Finding((Claim(name, "above", mean_of(leads)),), data)


def growing(models: Sequence[Measurements]) -> Finding:
    """Slopes over the first members, by the pairwise estimate; a model where it is saturated is left out."""
    used = [model for model in models if not model.saturated["pairwise"]]
    if not used:
        raise Refusal("every model's pairwise information is saturated, or there is no model")
    data: Records = []
    for model in used:
        for kind, curve in (
            ("redundancy", model.prefix_redundancy),
            ("conditional redundancy", model.prefix_conditional_redundancy),
        ):
            for k, nats in enumerate(curve, 1):
                data.append({**_label(model), "kind": kind, "members": k, **_number("nats", nats)})
    return Finding(
        (
            Claim("the slope of redundancy", "above", _pooled(used, lambda model: model.redundancy_slope)),
            Claim(
                "the slope of conditional redundancy",
                "above",
                _pooled(used, lambda model: model.conditional_redundancy_slope),
            ),
        ),
        data,
    )


def fano(models: Sequence[Measurements]) -> Finding:
    """The model that is nearest to its bound, at a level shared among all models."""
    if not models:
        raise Refusal("there is no model")
    worst = min(models, key=lambda model: float(model.fano_margin.value))
    claim = Claim(
        "the smallest margin of an error rate over Fano's bound",
        "above",
        worst.fano_margin,
        threshold=-SLACK,
        picked_from=len(models),
    )
    data: Records = []
    for model in models:
        terms = model.information["miller_madow"]
        rates = {name: float(terms[name].value) for name in ("error_rate", "fano_bound")}
        data.append({**_label(model), **rates, **_number("margin", model.fano_margin)})
    return Finding((claim,), data)


def raised_diversity(models: Sequence[Measurements]) -> Finding:
    """What a reward for diversity in training does to accuracy at equal bias: an intercept.

    Each model with λ > 0 is paired with the one with λ = 0 that is the same otherwise, seed and all. The
    pairs' differences in accuracy are regressed on those in ln bias, so that what the reward does to the bias
    is not counted as an effect of diversity. Pairs that share their λ = 0 are one cluster.
    """

    def same(model: Measurements) -> tuple[str, str, int, int]:
        return (model.task, model.architecture, model.depth, model.seed)

    plain = {same(model): model for model in models if model.regulariser == 0}
    pairs = [(plain[same(m)], m) for m in models if m.regulariser > 0 and same(m) in plain]
    data: Records = [
        {
            **_label(rewarded),
            "λ": rewarded.regulariser,
            "accuracy_change": float(rewarded.accuracy.value) - float(without.accuracy.value),
            "ln_bias_change": float(np.log(rewarded.bias.mean() / without.bias.mean())),
            "ratio_change": rewarded.ratio - without.ratio,
            "loss_change": float(rewarded.loss.mean() - without.loss.mean()),
        }
        for without, rewarded in pairs
    ]
    clusters = {pair: i for i, pair in enumerate(dict.fromkeys(same(without) for without, _ in pairs))}
    if len(clusters) < 3:
        raise Refusal(
            f"{len(clusters)} models with λ = 0 have a partner with λ > 0, of the same seed and depth"
        )
    if np.mean([record["ratio_change"] for record in data]) <= 0:
        raise Refusal("the reward has not raised ρ, so what comes of raising it is not seen")
    accuracy, bias = (np.array([r[name] for r in data]) for name in ("accuracy_change", "ln_bias_change"))
    design = np.column_stack([np.ones(len(data)), bias])
    found = regression(accuracy, design, np.array([clusters[same(without)] for without, _ in pairs]))
    return Finding((Claim("the change of accuracy at equal bias", "above", found[0]),), data)


_DEPTHS = "Train one task at {} depths or more, with two seeds or more each."
_MODEL = "Give the evidence of a model."

PREDICTIONS: tuple[Prediction[Measurements], ...] = (
    Prediction(
        "P1",
        "The loss is bias less diversity, exactly",
        "largest residual over all examples",
        _MODEL,
        identity,
    ),
    Prediction(
        "P2",
        "Across models, lower bias and higher diversity go with better performance",
        "standardised partial coefficients of bias and diversity on held-out accuracy",
        _DEPTHS.format("four"),
        across_models,
    ),
    Prediction(
        "P3",
        "Diversity matters more where bias is high",
        "interaction of bias and diversity on per-example correctness",
        "Give a model that is neither always right nor always wrong, on some hundreds of sequences.",
        within_models,
    ),
    Prediction(
        "P4",
        "A deeper model gains only if the added layers are diverse",
        "rank correlation of gain and change in ρ over adjacent depths",
        _DEPTHS.format("five"),
        added_layers,
    ),
    Prediction(
        "P5",
        "Marginal gains diminish: submodularity",
        "violation rate over members; second differences over trained depths",
        _DEPTHS.format("three"),
        diminishing,
    ),
    Prediction(
        "P6",
        "The gains follow the logarithm of depth",
        "held-out error of the logarithm against the best other form",
        _DEPTHS.format("four"),
        logarithm,
    ),
    Prediction(
        "P7",
        "Redundancy and conditional redundancy both grow with the number of members",
        "slopes over prefixes",
        "Give more examples: an estimate is saturated when it sees more patterns than a fifth of them.",
        growing,
    ),
    Prediction(
        "P8",
        "No error rate is under Fano's bound",
        "smallest margin over models",
        _MODEL,
        fano,
    ),
)
CAUSE: Prediction[Measurements] = Prediction(
    "P9",
    "Raising diversity by a regulariser, at equal bias, raises performance",
    "paired difference in accuracy, λ > 0 less λ = 0, at equal bias",
    "Train with λ = 0 and with a larger λ, at three seeds or depths or more.",
    raised_diversity,
)
