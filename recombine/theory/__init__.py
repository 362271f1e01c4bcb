"""The paper's theory as code that runs: each file is one statement, with its assumptions, and builds what it promises."""
