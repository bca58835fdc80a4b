#compdef icms icms-target icms-agent
# SPDX-License-Identifier: Apache-2.0
# Completion of icms, icms-target and icms-agent for zsh(1).

_icms_daemon() {
    local -a options
    options=(
        '(-c --config)'{-c,--config}'[configuration]:file:_files -g "*.y(a|)ml"'
        '--check-config[say whether the configuration is right]'
        '--print-config[print a configuration with every key]'
        '--ready-fd[write a line to a descriptor when serving]:descriptor:'
        '(-v --verbose)'{-v,--verbose}'[log more]'
        '(-V --version)'{-V,--version}'[print the version]'
        '(-h --help)'{-h,--help}'[print the options]'
    )
    [[ $service != icms-target ]] ||
        options+=('--format[overwrite drives that hold anything else]')
    _arguments -s $options
}

_icms() {
    local -a commands
    commands=(
        'dev:run one target and one agent on this machine'
        'put:store a block'
        'get:load a block'
        'exists:say whether blocks are there'
        'match:say how many blocks from the first on are there'
        'rm:forget blocks'
        'status:show the tier'
    )
    if (( CURRENT == 2 )); then
        _describe command commands
    else
        _arguments '--json[print JSON]' '--help[print the options]' '*:file:_files'
    fi
}

case $service in
    icms) _icms "$@" ;;
    *) _icms_daemon "$@" ;;
esac
