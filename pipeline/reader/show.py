"""A release's manifest in plain words, for whoever is going to use the release."""

from __future__ import annotations

from scoreshield.manifest.schema import Manifest
from scoreshield.privacy.sensitivity import ScoreRange
from scoreshield.utility.forecast import clipped_errors


def render_markdown(manifest: Manifest) -> str:
    """What is released, what it guarantees, how noisy it is, and how to read it, as Markdown."""
    sections = [
        _heading(manifest),
        _without_signal(manifest),
        _guarantee(manifest),
        _noise(manifest),
        _forecast(manifest),
        _projection(manifest),
        _budget(manifest),
        _arrays(manifest),
        _reading(manifest),
        _provenance(manifest),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _without_signal(manifest: Manifest) -> str:
    """What a reader must know before reading anything into such a release."""
    if manifest.regime == "gram" and manifest.post_processing.rank == 0:
        return (
            "**Nothing rose above the noise: the released matrix is the identity and says nothing "
            "about the records.**"
        )
    return ""


def _heading(manifest: Manifest) -> str:
    shape = manifest.shape
    if manifest.regime == "gram":
        what = f"the cosine similarities of {shape.n} records with one another ({shape.n} x"
        what += f" {shape.n})"
    else:
        what = f"the cosine scores of {shape.m} public queries against {shape.n} records"
    lines = [f"# Release {manifest.release_id}"]
    if not manifest.private:
        lines.append(f"**NOT PRIVATE: {manifest.not_private_reason}**")
    lines.append(
        f"Holds {what}, of embeddings with {shape.d} features. "
        f"Published {manifest.published_at or 'in memory'}."
    )
    return "\n\n".join(lines)


def _guarantee(manifest: Manifest) -> str:
    privacy = manifest.privacy
    if not manifest.private:
        return (
            f"## Guarantee\n\n{privacy.statement}\n\nThe size of the noise is that of epsilon = "
            f"{privacy.epsilon!r} at delta = {privacy.delta!r}, adjacency "
            f"`{privacy.adjacency}`."
        )
    return "\n".join(
        [
            "## Guarantee",
            "",
            privacy.statement,
            "",
            f"- epsilon = {privacy.epsilon!r}, delta = {privacy.delta!r} "
            f"(mu = {privacy.mu:.6g}), adjacency `{privacy.adjacency}`"
            + (f" with radius {privacy.radius:.9g}" if privacy.radius is not None else ""),
            f"- {privacy.release_type}, {privacy.access_type.lower()}.",
            f"- Trust: {privacy.trust_assumptions}.",
            f"- Not protected: {privacy.unprotected_quantities}.",
        ]
    )


def _noise(manifest: Manifest) -> str:
    mechanism = manifest.mechanism
    low, high = mechanism.score_range
    return "\n".join(
        [
            "## Noise",
            "",
            f"Before post-processing, every similarity carried Gaussian noise of standard "
            f"deviation sigma = {mechanism.sigma:.6g}; a similarity itself lies in "
            f"[{low:g}, {high:g}].",
            "",
            f"- sensitivity {mechanism.sensitivity.value:.6g}: {mechanism.sensitivity.derivation}",
            f"- values before the cast were multiples of 2^{mechanism.grid_exponent}",
            *([] if manifest.noisy is None else [f"- {manifest.noisy.rounding}"]),
            f"- key: {mechanism.key_stream}",
        ]
    )


def _forecast(manifest: Manifest) -> str:
    forecast = manifest.forecast
    if manifest.regime == "scores":
        return _scores_forecast(manifest)
    if forecast is None:
        return ""
    if forecast.carries_signal:
        verdict = (
            "A component (a direction that many embeddings share) can be told from the noise only "
            f"if it carries more than {100 * forecast.recoverable_share:.3g} % of the total."
        )
    else:
        verdict = (
            "At this noise no component can be told from it: the release carries no recoverable "
            f"signal. It would from epsilon = {forecast.epsilon_for_signal:.4g} on."
        )
    return (
        f"## What it can carry\n\n{verdict} Eigenvalues below {forecast.noise_edge:.4g} were "
        "indistinguishable from noise."
    )


def _scores_forecast(manifest: Manifest) -> str:
    mechanism = manifest.mechanism
    low, high = mechanism.score_range
    middle, end = clipped_errors(mechanism.sigma, ScoreRange(low, high))
    verdict = (
        ""
        if mechanism.sigma < (high - low) / 2
        else " A single score tells less than its range does; only what many scores share can be "
        "told from the noise."
    )
    return (
        f"## What it can carry\n\nA clean score in the middle of [{low:g}, {high:g}] errs by "
        f"{middle:.4g} (root mean square), one at an end by {end:.4g}. The mean of k scores of one "
        f"query errs by about sigma/sqrt(k) before clipping.{verdict}"
    )


def _projection(manifest: Manifest) -> str:
    done = manifest.post_processing
    if manifest.regime == "scores":
        low, high = manifest.mechanism.score_range
        return (
            f"## Post-processing\n\nScores were clipped to [{low:g}, {high:g}], and nothing else "
            "was done to them. Clipping lowers the error of every score; it draws in those near "
            "an end of the range, so that means of scores are no longer unbiased."
        )
    if not done.feasible:
        return (
            f"## Post-processing\n\nMethod `{done.method}`: entries clipped to [-1, 1] and nothing "
            "else. The matrix is **not positive semidefinite**: no set of vectors needs to have "
            "these cosines. Use another method where an algorithm relies on that."
        )
    settled = "" if done.converged else " It **stopped before it reached its tolerance**."
    parameters = ", ".join(f"{name} = {value}" for name, value in done.parameters.items())
    return (
        f"## Post-processing\n\nMethod `{done.method}`, {done.iterations} iterations, rank "
        f"{done.rank}.{settled} The result is positive semidefinite with unit diagonal, as cosines "
        f"of real vectors are. It was computed from noisy values alone.\n\nParameters: {parameters}"
    )


def _budget(manifest: Manifest) -> str:
    composition = manifest.composition
    if composition is None:
        return ""
    return (
        "## Budget of the gallery\n\n"
        f"All releases of this gallery together have spent epsilon = "
        f"{composition.spent_after.epsilon:.6g} at delta = {composition.budget_delta:g} "
        f"({composition.spent_before.epsilon:.6g} before this one), of a budget of "
        f"{composition.budget_epsilon:g}."
    )


def _arrays(manifest: Manifest) -> str:
    if not manifest.arrays:
        return ""
    lines = ["## Arrays", "", "| array | shape | type | SHA-256 |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {' x '.join(map(str, array.shape))} | {array.dtype} | `{array.sha256}` |"
        for name, array in sorted(manifest.arrays.items())
    ]
    return "\n".join(lines)


def _reading(manifest: Manifest) -> str:
    if not manifest.arrays:
        return ""
    if manifest.regime == "scores":
        return _reading_scores()
    return "\n".join(
        [
            "## Reading it",
            "",
            "```python",
            "from pipeline import open_release",
            "",
            'release = open_release("PATH")',
            "release.rows(0, 10)           # similarities of the first ten records to all others",
            "indices, values = release.topk(10)",
            "release.to_dask()             # the whole matrix, lazily",
            "```",
        ]
    )


def _reading_scores() -> str:
    return "\n".join(
        [
            "## Reading it",
            "",
            "```python",
            "from pipeline import open_release",
            "",
            'release = open_release("PATH")',
            "release.rows(0, 1)            # scores of the first query with all records",
            "indices, values = release.topk(10)  # per query",
            "release.to_dask()             # all scores (queries x records), lazily",
            "```",
        ]
    )


def _provenance(manifest: Manifest) -> str:
    software = ", ".join(f"{name} {version}" for name, version in sorted(manifest.software.items()))
    signed = (
        "Not signed."
        if manifest.signature is None
        else f"Signed (Ed25519) by key `{manifest.signature.public_key}`."
    )
    return f"## Provenance\n\n{signed} Made with {software or 'unknown software'}."
