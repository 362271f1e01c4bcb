import jax
import jax.numpy as jnp
import numpy as np

from recombine.parts import episodes


def test_episodes_are_concatenated_and_cut():
    steps = jnp.arange(12).reshape(3, 4)
    assert episodes.join_episodes(steps, 12).tolist() == list(range(12))
    assert episodes.join_episodes(steps, 5).tolist() == [0, 1, 2, 3, 4]
    assert episodes.join_episodes(jnp.zeros((3, 4, 7)), 5).shape == (5, 7)


def test_observations_have_unit_mean_square():
    x = episodes.normalize(jnp.asarray(np.random.default_rng(0).normal(3, 2, (4, 50)), jnp.float32))
    np.testing.assert_allclose(jnp.square(x).mean(axis=1), 1, rtol=1e-5)
    assert not np.isnan(episodes.normalize(jnp.zeros((1, 3)))).any()


def test_scores_worked_out_by_hand():
    # Two episodes of three steps, the last of them padding: right, right | wrong, right.
    y = jnp.array([0, 1, -1, 1, 0, -1])
    log_odds = jnp.log(jnp.array([3.0, 1 / 3, 9.0, 3.0, 3.0, 1 / 9]))  # odds of action 0
    prediction = jnp.stack([log_odds, jnp.zeros(6)], axis=1)
    scores = episodes.score(prediction, y, 3)
    assert scores["accuracy"] == 0.75
    assert scores["trajectory_accuracy"] == 0.5
    np.testing.assert_allclose(scores["loss"], -(3 * np.log(0.75) + np.log(0.25)) / 4, rtol=1e-6)


def test_predictions_on_padding_have_no_effect():
    rng = np.random.default_rng(0)
    prediction = jnp.asarray(rng.normal(size=(8, 5)), jnp.float32)
    y = jnp.array([1, 2, -1, -1, 0, 3, 4, -1])
    other = prediction.at[jnp.array([2, 3, 7])].set(1e3)

    def gradient(p):
        return jax.grad(lambda p: episodes.score(p, y, 4)["loss"])(p)

    assert episodes.score(prediction, y, 4) == episodes.score(other, y, 4)
    np.testing.assert_array_equal(gradient(other)[jnp.array([2, 3, 7])], 0)
    assert np.abs(gradient(prediction)[0]).sum() > 0


def test_a_cut_episode_is_scored_on_its_remaining_steps():
    y = jnp.array([0, 0, 0, 1, 1])  # horizon 4: one whole episode, and the first step of another
    prediction = jax.nn.one_hot(jnp.array([0, 0, 0, 1, 0]), 2)
    assert episodes.score(prediction, y, 4)["trajectory_accuracy"] == 0.5
    assert episodes.score(prediction, y, 4)["accuracy"] == np.float32(0.8)
