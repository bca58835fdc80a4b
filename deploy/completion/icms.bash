# SPDX-License-Identifier: Apache-2.0
# Completion of icms, icms-target and icms-agent for bash(1).

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
    *)
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
        ;;
    esac
}

_icms()
{
    local word=$2

    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "dev put get exists match rm status --help --version" \
            -- "$word")
    else
        case $word in
        -*) mapfile -t COMPREPLY < <(compgen -W "--json --help" -- "$word") ;;
        *)
            compopt -o filenames 2> /dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
            ;;
        esac
    fi
}

complete -F _icms icms
complete -F _icms_daemon icms-target icms-agent
