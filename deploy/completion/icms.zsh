#compdef icms icms-target icms-agent icms-etcd
# SPDX-License-Identifier: Apache-2.0
# Completion of icms, icms-target, icms-agent and icms-etcd for zsh(1).

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
        options+=('*--format[erase this drive]:drive:(all drive0 drive1 drive2 drive3)')
    _arguments -s $options
}

_icms() {
    local -a commands tier keys
    commands=(
        'dev:run a target and an agent on this machine, for trials'
        'put:store a block'
        'get:load a block'
        'exists:tell which blocks are found'
        'match:count the leading blocks that are found'
        'rm:remove blocks'
        'status:show readiness, enclosures, volumes, hits and misses'
        'trace:show where the time of requests went'
        'prestage:say which blocks will be asked for soon'
        'bench:benchmark against the hardware limits'
        'replay:simulate the hits of a trace on a drive'
        'key:make a secret'
        'volume:list, change and erase volumes'
        'drive:add, drain, remove and replace drives of an enclosure'
        'pod:show and change the enclosures of the pod'
        'config:check and compare configuration files'
        'version:print the version'
        'help:list commands, or the options of one'
    )
    tier=(
        '(-o --open)'{-o,--open}'[the tier]:where:'
        '(-v --volume)'{-v,--volume}'[the volume]:name:'
        '--keys[keys of encrypted volumes]:file:_files'
        '(-d --deadline)'{-d,--deadline}'[give up after this]:time:'
        '--json[answer with JSON]'
        '(-q --quiet)'{-q,--quiet}'[no answer but the exit status]'
        '(-h --help)'{-h,--help}'[print the options]'
    )
    keys=('--hex[keys are hex]' '--name[keys are names of any length]')
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    case $words[2] in
        dev)
            _arguments '--dir[keep everything there]:directory:_files -/' \
                '--size[of the drive]:size:' '--port[of the target]:port:' \
                '(-v --volume)'{-v,--volume}'[the volume]:name:' \
                '--json[print where everything is as JSON]' \
                '(-h --help)'{-h,--help}'[print the options]'
            ;;
        put)
            _arguments $tier $keys '--input[the value]:file:_files' \
                '--on-flash[done when a drive has it]' \
                '--if-absent[leave a block that is there]' '--once[it is read once at most]' ':key:' ':file:_files'
            ;;
        get)
            _arguments $tier $keys '--output[for the value]:file:_files' '--once[it is read once at most]' ':key:' ':file:_files'
            ;;
        exists|rm) _arguments $tier $keys '*:key:' ;;
        match) _arguments $tier $keys '--estimate[say how long it takes to load them]' '*:key:' ;;
        trace) _arguments $tier $keys ':key:' ;;
        prestage)
            _arguments $tier $keys '--priority[the larger goes first]:number:(0 1 2 3)' \
                '--tier[where to]:tier:(dram local)' '--pin[how long they stay]:time:' '--cancel[take hints back]' \
                '--once[they are read once at most]' '*:key:'
            ;;
        status)
            _arguments '(-o --open)'{-o,--open}'[the tier]:where:' \
                '--target[file or http URL of a target]:where:_files' \
                '--token[of the http port]:file:_files' '--ca[authorities of its certificate]:file:_files' \
                '--cert[a certificate of a client]:file:_files' '--key[of --cert]:file:_files' \
                '--json[print JSON]' '(-h --help)'{-h,--help}'[print the options]'
            ;;
        bench)
            _arguments '--list[the benches there are]' \
                '--dir[where drive files go]:directory:_files -/' \
                '--space[most that they take]:size:' '--slices[of each side]:number:' \
                '--slice[length of one]:time:' '--size[of values]:size:' \
                '--depth[operations in flight]:number:' '--reactors[of a daemon]:number:' \
                '--op[only this]:operation:(get put)' \
                '--variant[only this]:name:' '--json[one object a row]' \
                '(-h --help)'{-h,--help}'[print the options]' ':name:'
            ;;
        replay)
            _arguments '--format[of the trace]:format:(mooncake qwen)' \
                '--capacity[sizes of the drive]:percents:' '--policy[what to replay]:names:' \
                '--loops[times the trace goes by]:number:' \
                '--budget[what may be written]:bytes a day or percent:' \
                '--placement[placement of runs in a pod]:enclosures:' \
                '--tiers[memory, own drive and pod of one server]:sizes:' \
                '--exclusive[with --tiers: drive and pod have each its share]' \
                '--block[size of a value]:size:' '--segment[size of a segment]:size:' \
                '--payload[through the store, with a drive here]:directory:_files -/' \
                '--space[that the drive may take]:size:' \
                '--json[answer with JSON]' '(-h --help)'{-h,--help}'[print the options]' \
                ':trace:_files'
            ;;
        key)
            _arguments '--type[what it is for]:type:(dhchap tls volume token)' \
                '--hash[length and transformation]:hash:(none sha256 sha384 sha512)' \
                '--kek[wrap under this key]:file:_files' \
                '--json[answer with JSON]' '(-h --help)'{-h,--help}'[print the options]' \
                ':what:(gen wrap)' ':file:_files' ':file:_files'
            ;;
        volume)
            _arguments $tier $keys '*--config[raise the generation in it]:file:_files' \
                '--pod[pod map that is changed with it]:file:_files' \
                '--yes[also what loses blocks]' '--file[of a target]:file:_files' \
                '--dry-run[show, and change nothing]' \
                ':what:(list create set reset delete erase)' '*:volume, KEY=VALUE or key:'
            ;;
        drive)
            _arguments '--file[the file of the target]:file:_files' '--format[erase what is on the drive that comes]' \
                '--yes[although blocks are lost]' '--cert[a certificate of a client]:file:_files' \
                '--key[of --cert]:file:_files' '--dry-run[show what would change]' '--json[answer with JSON]' \
                '(-q --quiet)'{-q,--quiet}'[no answer but the status]' $help \
                ':what:(list add drain undrain remove replace)' '*:path:_files'
            ;;
        pod)
            _arguments '--file[the pod map]:file:_files' '--address[of the new enclosure]:address:' \
                '--capacity[of the new enclosure]:size:' '--weight[of the new enclosure]:number:' '--uuid[of the new enclosure]:UUID:' \
                '--nqn[of the new enclosure]:NQN:' '--http[where the new enclosure shows its status]:URL:' \
                '--dry-run[show, and change nothing]' \
                '--yes[also what loses blocks]' '(-o --open)'{-o,--open}'[the agent]:where:' \
                '(-d --deadline)'{-d,--deadline}'[how long status, out, remove and reload wait]:time:' \
                '--token[of http ports]:file:_files' '--ca[authorities of their certificates]:file:_files' \
                '--cert[a certificate of a client]:file:_files' '--key[of --cert]:file:_files' \
                '--json[answer with JSON]' '(-q --quiet)'{-q,--quiet}'[no answer but the exit status]' \
                '(-h --help)'{-h,--help}'[print the options]' \
                ':what:(status add settle weight drain undrain out remove volume reload)' ':enclosure:'
            ;;
        config)
            _arguments '--json[answer with JSON]' '(-q --quiet)'{-q,--quiet}'[no answer but the exit status]' \
                '(-h --help)'{-h,--help}'[print the options]' ':what:(check diff)' '*:file:_files'
            ;;
        version) _arguments '--json[print JSON]' ;;
        help) _describe command commands ;;
    esac
}

_icms_etcd() {
    _arguments '--prefix[begin of the keys]:prefix:' '--endpoints[addresses of etcd]:URLs:' \
        '--cacert[who signs its certificates]:file:_files' '--cert[certificate for it]:file:_files' \
        '--key[the key of that]:file:_files' '--user[of etcd]:name:' \
        '--password-file[one line]:file:_files' '--timeout[for each address]:time:' \
        '--dry-run[say, and change nothing]' '--yes[push: although the map in etcd cannot be read]' \
        '--json[push, pull, status: answer with JSON]' '(-V --version)'{-V,--version}'[print the version]' \
        '(-h --help)'{-h,--help}'[print the options]' \
        ':what:(push pull follow pod status register)' ':file:_files'
}

case $service in
    icms-etcd) _icms_etcd "$@" ;;
    icms) _icms "$@" ;;
    *) _icms_daemon "$@" ;;
esac
