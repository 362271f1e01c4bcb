#!/bin/sh
# Run the tests with other Python interpreters, each in a virtual environment of its own:
#
#     benchmarks/pythons.sh python3.12 python3.13
#
# Takes about ten minutes per interpreter on two cores. The last lines give the result of each; the
# exit code is 1 if one of them failed. $EXTRAS and $ARGS reach `make test`.
set -u
if [ $# -eq 0 ]; then
    echo "usage: $0 PYTHON..." >&2
    exit 2
fi
cd "$(dirname "$0")/.." || exit 2
logs=$(mktemp -d)
results=""
failed=0
for python in "$@"; do
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || exit 2
    if make test PYTHON="$python" VENV=".venv-$version" EXTRAS="${EXTRAS:-}" ARGS="${ARGS:-}" \
        > "$logs/$version" 2>&1; then
        outcome="passed"
    else
        outcome="FAILED"
        failed=1
        tail -n 40 "$logs/$version"
    fi
    results="$results
Python $version $outcome: $(tail -n 1 "$logs/$version") (log: $logs/$version)"
done
echo "$results"
exit $failed
