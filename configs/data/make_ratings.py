"""Make ratings.csv: invented ratings of invented products, for configs/recommender.yaml.

600 users give 6000 ratings to 300 products. Each product has one of six themes and each user
prefers one; ratings of the preferred theme are higher. Few products are rated often, many seldom.

    python configs/data/make_ratings.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

USERS, PRODUCTS, RATINGS, THEMES = 600, 300, 6000, 6


def main() -> None:
    random = np.random.default_rng(20)
    theme, preferred = random.integers(THEMES, size=PRODUCTS), random.integers(THEMES, size=USERS)
    popularity = 1 / (np.arange(PRODUCTS) + 5.0)
    pairs: set[tuple[int, int]] = set()
    # Every product is rated at least once.
    for product in range(PRODUCTS):
        pairs.add((int(random.integers(USERS)), product))
    while len(pairs) < RATINGS:
        user = int(random.integers(USERS))
        weight = popularity * np.where(theme == preferred[user], 8.0, 1.0)
        pairs.add((user, int(random.choice(PRODUCTS, p=weight / weight.sum()))))
    lines = ["userId,productId,rating"]
    for user, product in sorted(pairs):
        liked = theme[product] == preferred[user]
        stars = int(np.clip(round(random.normal(4.4 if liked else 2.6, 0.9)), 1, 5))
        lines.append(f"{user + 1},{product + 1},{stars}")
    Path(__file__).with_name("ratings.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
