# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# tools/stages.sh: what tools/check.sh and tools/check-engines.sh share; they source it in the
# project's folder.
#
# Each stage adds to the counts: a Meson run one for each of its tests, a linter one, a program one
# for each case it prints as "ok NAME", "not ok NAME" or "skip NAME". A stage that breaks before it
# can count is one failure. Logs of all stages lie in build/check/.
PATH=$PATH:/usr/sbin:/sbin

logs=build/check
begin=$SECONDS
passed=0
failed=0
skipped=0
failures=()
skips=()
cpu=0

say()
{
    printf '[%3d:%02d] %s\n' $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)) "$*"
}

# count RESULT NAME
count()
{
    case $1 in
    ok) passed=$((passed + 1)) ;;
    skip) skipped=$((skipped + 1)) && skips+=("$2") ;;
    *) failed=$((failed + 1)) && failures+=("$2") ;;
    esac
}

# Adds every line "ok NAME", "not ok NAME" or "skip NAME" of the file $2; $1 is the stage's name.
count_lines()
{
    local stage=$1 file=$2 line

    while read -r line; do
        case $line in
        "ok "*) count ok "$stage: ${line#ok }" ;;
        "not ok "*) count fail "$stage: ${line#not ok }" ;;
        "skip "*) count skip "$stage: ${line#skip }" ;;
        esac
    done < "$file"
}

# Sets cpu: whole seconds of processor time of what has ended, user and system.
cpu_now()
{
    times > "$logs/times" # not in a pipe: that would be another shell, with children of its own
    cpu=$(awk -F '[ms ]+' 'END { printf "%d", ($1 + $3) * 60 + $2 + $4 }' "$logs/times")
}

# Says how the stage $1 ended that ran since $2 with the counts $3 $4 $5 before it. What other work
# on the machine delays is seen by the processor time, which stays what it is.
stage_end()
{
    local before=$cpu

    cpu_now
    say "$1: $((passed - $3)) passed, $((failed - $4)) failed, $((skipped - $5)) skipped" \
        "($((SECONDS - $2)) s, processors $((cpu - before)) s)"
}

# stage_lines NAME COMMAND...: runs a command that prints its cases as lines.
stage_lines()
{
    local name=$1 t=$SECONDS p=$passed f=$failed s=$skipped status
    local log=$logs/${1// /-}.log
    shift

    say "$name ..."
    "$@" > "$log" 2>&1
    status=$?
    count_lines "$name" "$log"
    if [ $status != 0 ] && [ $failed = $f ]; then
        count fail "$name (exit status $status, see $log)"
    elif [ $((passed + failed + skipped)) = $((p + f + s)) ]; then
        count fail "$name (ran nothing, see $log)"
    fi
    [ $failed = $f ] || { echo "--- $name" && tail -60 "$log"; } | tee -a "$logs/failed"
    stage_end "$name" "$t" "$p" "$f" "$s"
}

# stage_lint NAME COMMAND...: one test, by its exit status.
stage_lint()
{
    local name=$1 log=$logs/${1// /-}.log
    shift

    if "$@" > "$log" 2>&1; then
        count ok "$name"
    else
        count fail "$name (see $log)"
        tail -40 "$log"
    fi
    say "$name: $(tail -1 "$log")"
}

# stage_meson NAME FOLDER SUITES SETUP...: configures, compiles and runs the suites in a folder, but no
# test that is also in a suite named as -SUITE.
stage_meson()
{
    local name=$1 dir=$2 suites=$3 t=$SECONDS p=$passed f=$failed s=$skipped suite log
    local -a arguments=()
    shift 3

    log=$logs/${name// /-}.log
    say "$name: compiling"
    if ! { [ -e "$dir/build.ninja" ] || tools/setup.sh "$dir" "$@"; } > "$log" 2>&1 ||
        ! ninja -C "$dir" >> "$log" 2>&1; then
        tail -40 "$log"
        count fail "$name (does not compile, see $log)"
        stage_end "$name" "$t" "$p" "$f" "$s"
        return
    fi
    for suite in $suites; do
        case $suite in
        -*) arguments+=(--no-suite "${suite#-}") ;;
        *) arguments+=(--suite "$suite") ;;
        esac
    done
    say "$name: suites $suites"
    rm -f "$dir/meson-logs/check.json"
    # one more than there are cores: some tests only wait
    meson test -C "$dir" --no-rebuild --num-processes $(($(nproc) + 1)) --timeout-multiplier 3 \
        --logbase check --print-errorlogs "${arguments[@]}" >> "$log" 2>&1
    python3 tools/meson-results.py "$dir/meson-logs/check.json" > "$log.results" 2>> "$log"
    count_lines "$name" "$log.results"
    say "$name: $(tail -1 "$log.results")"
    [ $((passed + failed + skipped)) != $((p + f + s)) ] || count fail "$name (ran nothing, see $log)"
    [ $failed = $f ] || grep -Ev '^(ok|longest) ' "$log.results"
    [ $failed = $f ] || python3 tools/meson-results.py --failed "$dir/meson-logs/check.json" \
        2>> "$log" | tee -a "$logs/failed"
    stage_end "$name" "$t" "$p" "$f" "$s"
}

# Prints what failed, where who cuts a log still sees it, and the sum. Status 0 says that everything
# passed and nothing was skipped.
stages_end()
{
    local name

    tail -80 "$logs/failed"
    for name in ${failures[@]+"${failures[@]}"}; do
        echo "failed: $name"
    done
    for name in ${skips[@]+"${skips[@]}"}; do
        echo "skipped: $name"
    done
    say "done"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed = 0 ] && [ $skipped = 0 ]
}

mkdir -p "$logs"
: > "$logs/failed"
