import jax
import jax.numpy as jnp
import numpy as np

from recombine.parts import episodes


def test_steps_are_laid_end_to_end_and_cut():
    steps = jnp.arange(12).reshape(3, 4)
    assert episodes.end_to_end(steps, 12).tolist() == list(range(12))
    assert episodes.end_to_end(steps, 5).tolist() == [0, 1, 2, 3, 4]
    assert episodes.end_to_end(jnp.zeros((3, 4, 7)), 5).shape == (5, 7)


def test_observations_have_unit_mean_square():
    x = episodes.normalise(jnp.asarray(np.random.default_rng(0).normal(3, 2, (4, 50)), jnp.float32))
    np.testing.assert_allclose(jnp.square(x).mean(axis=1), 1, rtol=1e-5)
    assert not np.isnan(episodes.normalise(jnp.zeros((1, 3)))).any()


def test_scores_worked_out_by_hand():
    # Two episodes of three steps, two actions. Right in 0, 1 | wrong, right; the rest is padding.
    y = jnp.array([0, 1, -1, 1, 0, -1])
    log_odds = jnp.log(jnp.array([3.0, 1 / 3, 9.0, 3.0, 3.0, 1 / 9]))  # odds of action 0
    prediction = jnp.stack([log_odds, jnp.zeros(6)], axis=1)
    found = episodes.score(prediction, y, 3)
    assert found["accuracy"] == 0.75
    assert found["trajectory_accuracy"] == 0.5
    np.testing.assert_allclose(found["loss"], -(3 * np.log(0.75) + np.log(0.25)) / 4, rtol=1e-6)


def test_what_stands_in_padding_changes_nothing():
    rng = np.random.default_rng(0)
    prediction, y = (
        jnp.asarray(rng.normal(size=(8, 5)), jnp.float32),
        jnp.array([1, 2, -1, -1, 0, 3, 4, -1]),
    )
    other = prediction.at[jnp.array([2, 3, 7])].set(1e3)

    def slope(p):
        return jax.grad(lambda p: episodes.score(p, y, 4)["loss"])(p)

    assert episodes.score(prediction, y, 4) == episodes.score(other, y, 4)
    np.testing.assert_array_equal(slope(other)[jnp.array([2, 3, 7])], 0)
    assert np.abs(slope(prediction)[0]).sum() > 0


def test_a_cut_episode_counts_with_the_steps_that_it_has():
    y = jnp.array([0, 0, 0, 1, 1])  # horizon 4: one whole episode, and the first step of another
    prediction = jax.nn.one_hot(jnp.array([0, 0, 0, 1, 0]), 2)
    assert episodes.score(prediction, y, 4)["trajectory_accuracy"] == 0.5
    assert episodes.score(prediction, y, 4)["accuracy"] == np.float32(0.8)
