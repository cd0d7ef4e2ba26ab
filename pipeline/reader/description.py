"""A release's manifest in plain words, for whoever is going to use the release."""

from __future__ import annotations

from scoreshield.manifest.numbers import stated_mechanism
from scoreshield.manifest.schema import Manifest
from scoreshield.regimes.registry import REGIMES


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
    if REGIMES[manifest.regime].projected and manifest.post_processing.rank == 0:
        return (
            "**Nothing rose above the noise: the released matrix is the identity and says nothing "
            "about the records.**"
        )
    return ""


def _heading(manifest: Manifest) -> str:
    holds = REGIMES[manifest.regime].holds(stated_mechanism(manifest))
    lines = [f"# Release {manifest.release_id}"]
    if not manifest.private:
        lines.append(f"**NOT PRIVATE: {manifest.not_private_reason}**")
    lines.append(
        f"Holds {holds}, of embeddings with {manifest.shape.d} features. "
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
    mechanism = stated_mechanism(manifest)
    forecast = REGIMES[manifest.regime].forecast(mechanism)
    return f"## What it can carry\n\n{forecast.for_readers(mechanism)}"


def _projection(manifest: Manifest) -> str:
    done = manifest.post_processing
    if not REGIMES[manifest.regime].projected:
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
    return "\n".join(
        [
            "## Reading it",
            "",
            "```python",
            "from pipeline import open_release",
            "",
            'release = open_release("PATH")',
            *REGIMES[manifest.regime].reading,
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
