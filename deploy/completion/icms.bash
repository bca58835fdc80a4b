# SPDX-License-Identifier: Apache-2.0
# Completion of icms, icms-target, icms-agent and icms-etcd for bash(1).

_icms_daemon()
{
    local word=$2 previous=$3
    local options="--config --check-config --print-config --ready-fd --verbose --version --help"

    [ "${1##*/}" != icms-target ] || options="$options --format"
    COMPREPLY=()
    case $previous in
    -c | --config)
        compopt -o filenames 2> /dev/null
        mapfile -t COMPREPLY < <(compgen -f -X '!*.y*ml' -- "$word"; compgen -d -- "$word")
        ;;
    --ready-fd) ;;
    --format)
        mapfile -t COMPREPLY < <(compgen -W "all drive0 drive1 drive2 drive3" -- "$word"; compgen -f -- "$word")
        ;;
    *)
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
        ;;
    esac
}

_icms()
{
    local word=$2 command=${COMP_WORDS[1]:-} options="--help"
    local tier="--open --volume --keys --deadline --json --quiet" keys="--hex --name"

    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "dev put get exists match rm status trace prestage bench replay key volume drive pod config version help" \
            -- "$word")
        return
    fi
    case $command in
    dev) options="$options --dir --size --port --volume --json" ;;
    put) options="$options $tier $keys --input --on-flash --if-absent --once" ;;
    get) options="$options $tier $keys --output --once" ;;
    exists | rm) options="$options $tier $keys" ;;
    match) options="$options $tier $keys --estimate" ;;
    status) options="$options --open --target --token --ca --cert --key --json" ;;
    trace) options="$options $tier $keys" ;;
    prestage) options="$options $tier $keys --priority --tier --pin --cancel --once" ;;
    bench)
        options="$options --list --dir --space --slices --slice --size --depth --reactors --op --variant --json"
        ;;
    replay)
        options="$options --format --capacity --policy --loops --budget --placement --tiers --exclusive --block --segment --payload"
        options="$options --space --json"
        ;;
    key) options="$options --type --hash --kek --json" ;;
    volume) options="$options $tier $keys --config --yes --file --pod --dry-run" ;;
    drive) options="$options --file --format --yes --cert --key --dry-run --json --quiet" ;;
    pod)
        options="$options --file --address --capacity --weight --uuid --nqn --http --dry-run --yes --open --deadline"
        options="$options --token --ca --cert --key --json --quiet"
        ;;
    config) options="$options --json --quiet" ;;
    version) options="--json" ;;
    help) options="dev put get exists match rm status trace prestage bench replay key volume drive pod config" ;;
    esac
    case $word,$command in
    -*,* | *,help)
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
        ;;
    *,volume)
        mapfile -t COMPREPLY < <(compgen -W "list create set reset delete erase" -- "$word"
            [[ ${COMP_WORDS[COMP_CWORD - 1]} != --@(file|config|keys) ]] || compgen -f -- "$word")
        ;;
    *,drive)
        mapfile -t COMPREPLY < <(compgen -W "list add drain undrain remove replace" -- "$word"
            [ "${COMP_CWORD}" -lt 3 ] || compgen -f -- "$word")
        ;;
    *,pod)
        mapfile -t COMPREPLY < <(compgen -W "status add settle weight drain undrain out remove volume reload" -- "$word"
            [[ ${COMP_WORDS[COMP_CWORD - 1]} != --@(file|token|ca|cert|key) ]] || compgen -f -- "$word")
        ;;
    *)
        compopt -o filenames 2> /dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        ;;
    esac
}

_icms_etcd()
{
    local word=$2 previous=$3

    case $previous in
    --prefix | --endpoints | --user | --timeout)
        COMPREPLY=()
        return
        ;;
    esac
    case $word in
    -*)
        mapfile -t COMPREPLY < <(compgen -W "--prefix --endpoints --cacert --cert --key --user --password-file
            --timeout --dry-run --yes --json --version --help" -- "$word")
        ;;
    *)
        compopt -o filenames 2> /dev/null
        mapfile -t COMPREPLY < <([ "$COMP_CWORD" != 1 ] ||
            compgen -W "push pull follow pod status register" -- "$word"
            compgen -f -- "$word")
        ;;
    esac
}

complete -F _icms icms
complete -F _icms_etcd icms-etcd
complete -F _icms_daemon icms-target icms-agent
