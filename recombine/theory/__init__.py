"""The paper's theory as code that runs: each file is one statement, its assumptions, and what it promises, built."""
