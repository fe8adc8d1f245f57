"""The theme of all figures."""

import matplotlib.pyplot as plt

from retouch.plotting.theme import GRID, plot_style


def test_the_theme_replaces_the_users_settings_and_gives_them_back():
    with plt.rc_context({"grid.color": "red", "lines.linewidth": 7, "svg.hashsalt": "mine"}):
        with plot_style("outer"):
            assert plt.rcParams["grid.color"] == GRID
            assert plt.rcParams["lines.linewidth"] != 7
            with plot_style("inner"):
                assert plt.rcParams["grid.color"] == GRID
                assert plt.rcParams["svg.hashsalt"] == "inner"
            assert plt.rcParams["svg.hashsalt"] == "outer"
        assert plt.rcParams["grid.color"] == "red"
        assert plt.rcParams["lines.linewidth"] == 7
        assert plt.rcParams["svg.hashsalt"] == "mine"
        with plot_style():  # entered anew, not taken for a nested one
            assert plt.rcParams["grid.color"] == GRID
