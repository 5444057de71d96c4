#!/bin/sh
# Installs Covey for this user: one virtual environment, `covey` in PREFIX/bin, a look by the doctor; with --join or --up
# also a service. Again with the same wheels it changes nothing. Covey isn't published on any index: its own wheels come
# from where --from says, or are built from the checkout that this script lies in.
set -eu

usage() {
    cat <<'WORDS'
Usage: install.sh [OPTION]...

  --from DIR          folder with Covey's wheels, and any of their dependencies (else: the checkout of this script)
  --offline           take everything from that folder, and ask no index; needs --from
  --prefix DIR        where to install (default: ~/.local): DIR/bin/covey, DIR/share/covey
  --python PROGRAM    Python 3.11 or newer (default: as installed, or the newest on PATH)
  --with-vllm         install vLLM beside it, in an environment of its own (Linux; some gigabytes)
  --join URL          then run `covey join URL` as a service of this user
  --token-file FILE   ... by this join token (`covey token create --role machine`)
  --up DIR            or: run `covey up DIR` as a service of this user
  --headless          ask nothing, and print plain lines (also without a terminal)
  --help

Exit codes: 0 installed and nothing is broken; 1 it failed, or the doctor found something broken; 2 wrong use.
WORDS
}

say() { printf '%s\n' "$*"; }
fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}
misuse() {
    printf 'install.sh: %s (--help lists the options)\n' "$*" >&2
    exit 2
}

PARTS="crds planner fleet-client controller node-agent gateway simulator cli"
WHEELS="covey covey_api covey_planner covey_fleet_client covey_controller covey_agent covey_gateway covey_simulator"
from='' offline='' prefix="${HOME:?HOME must be set}/.local" python='' chosen='' vllm='' join='' token='' up='' headless=''

while [ $# -gt 0 ]; do
    case $1 in
        --from | --prefix | --python | --join | --token-file | --up)
            [ $# -ge 2 ] && [ -n "$2" ] || misuse "$1 needs a value"
            case $1 in
                --from) from=$2 ;;
                --prefix) prefix=$2 ;;
                --python) python=$2 chosen=1 ;;
                --join) join=$2 ;;
                --token-file) token=$2 ;;
                --up) up=$2 ;;
            esac
            shift
            ;;
        --offline) offline=1 ;;
        --with-vllm) vllm=1 ;;
        --headless) headless=1 ;;
        --help | -h)
            usage
            exit 0
            ;;
        *) misuse "there is no option '$1'" ;;
    esac
    shift
done

[ -z "$join" ] || [ -z "$up" ] || misuse "--join and --up exclude each other: a machine joins a fleet, or is one"
[ -z "$token" ] || [ -n "$join" ] || misuse "--token-file must be given with --join"
[ -z "$offline" ] || [ -n "$from" ] || misuse "--offline needs --from: building from a checkout asks an index for tools"
[ -t 0 ] && [ -t 1 ] || headless=1
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
if [ -n "$token" ] && [ ! -f "$token" ]; then misuse "--token-file: there is no file '$token'"; fi
# What root writes into a user's home can't be changed by that user again.
if [ -n "${SUDO_USER:-}" ] && [ "$(id -u)" = 0 ]; then
    # shellcheck disable=SC2012 # one folder, and `stat` isn't the same everywhere
    [ "$(ls -ldn "$HOME" | awk '{print $3}')" = 0 ] ||
        misuse "HOME is '$HOME', which isn't root's: leave out sudo, or run it as 'sudo -H' for root's own home"
fi

home="$prefix/share/covey"
scratch='' constraints='' upgraded=''
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# An environment that was to be replaced is back where its successor didn't come about.
clean_up() {
    [ -z "$scratch" ] || rm -rf "$scratch"
    if [ -d "$home/venv.before" ]; then
        rm -rf "$home/venv"
        mv "$home/venv.before" "$home/venv"
    fi
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# Which one it is, by whatever name; nothing where it can't say.
tell_python() { "$1" -c 'import os, sys; print(os.path.realpath(sys.base_prefix), *sys.version_info[:2])' 2>/dev/null || true; }

find_python() {
    if [ -n "$python" ]; then
        is_new_enough "$python" || fail "--python must be Python 3.11 or newer; '$python' isn't, or can't be run"
        return
    fi
    for each in python3.14 python3.13 python3.12 python3.11 python3; do
        if command -v "$each" >/dev/null 2>&1 && is_new_enough "$each"; then
            python=$(command -v "$each")
            return
        fi
    done
    fail "Python 3.11 or newer must be on PATH; there is none. Install it, or name it with --python"
}

find_folder() {
    [ -d "$from" ] || misuse "--from: there is no folder '$from'"
    wheels=$(cd "$from" && pwd)
}

# Sets `wheels` to a folder with what the checkout is built into, and `constraints` to a file of versions.
build_wheels() {
    checkout=$(cd "$(dirname "$0")" && pwd)
    [ -f "$checkout/cli/pyproject.toml" ] || fail \
        "Covey isn't published on an index: name a folder with its wheels (--from DIR), or run this script in a checkout"
    say "Covey isn't published on an index: building its wheels from '$checkout' (a minute or two)"
    scratch=$(mktemp -d)
    wheels=$scratch/wheels
    sources=''
    for each in $PARTS; do sources="$sources ./$each"; done
    # shellcheck disable=SC2086 # the words of a list of our own
    (cd "$checkout" && "$home/venv/bin/python" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir "$wheels" $sources) ||
        fail "Covey's wheels could not be built; pip says why above"
    write_constraints "$checkout/uv.lock" >"$scratch/constraints.txt"
    constraints=$scratch/constraints.txt
}

# The versions that are tested, where the lock has one version of a project.
write_constraints() {
    "$home/venv/bin/python" - "$1" <<'PYTHON'
import sys
import tomllib
from collections import Counter

with open(sys.argv[1], "rb") as file:
    packages = [each for each in tomllib.load(file)["package"] if "registry" in each.get("source", {})]
times = Counter(each["name"] for each in packages)
for each in packages:
    if times[each["name"]] == 1:
        print(f"{each['name']}=={each['version']}")
PYTHON
}

# Sets `own` to the paths of Covey's wheels: by path, for an index may have others of these names.
choose_wheels() {
    own=''
    for each in $WHEELS; do
        set -- "$wheels/$each"-[0-9]*-py3-none-any.whl
        [ -f "$1" ] || fail "'$wheels' must hold a wheel of $each; there is none"
        [ $# -eq 1 ] || fail "'$wheels' must hold one wheel of $each; there are $#: leave the one that is wanted"
        own="$own
$1"
    done
}

make_environment() {
    if "$home/venv/bin/python" -m pip --version >/dev/null 2>&1; then
        if [ -z "$chosen" ]; then return; fi
        made_of=$(tell_python "$home/venv/bin/python")
        if [ -z "$made_of" ] || [ "$made_of" = "$(tell_python "$python")" ]; then return; fi
        say "Making the environment anew, of '$python' instead of: $made_of"
    fi
    mkdir -p "$home"
    if [ -d "$home/venv.before" ]; then
        rm -rf "$home/venv" # of a run that was killed
    elif [ -d "$home/venv" ]; then
        mv "$home/venv" "$home/venv.before"
    fi
    say "Making an environment of '$python' in '$home/venv' (some seconds)"
    "$python" -m venv "$home/venv" >/dev/null || {
        rm -rf "$home/venv"
        fail "'$python' can't make a virtual environment; on Debian and Ubuntu install the package python3-venv"
    }
}

pip_install() {
    environment=$1
    shift
    [ -z "$offline" ] || set -- --no-index "$@"
    [ -z "$constraints" ] || set -- --constraint "$constraints" "$@"
    # A user's setting to install for the user (`user = true`) is refused in an environment.
    PIP_USER=0 "$home/venv/bin/python" -m pip --disable-pip-version-check --python "$environment/bin/python" install --quiet --no-input --find-links "$wheels" "$@"
}

install_covey() {
    stamp=$(printf '%s\n' "$own" | sed 1d | while IFS= read -r each; do cksum <"$each"; done)
    if [ -f "$home/installed" ] && [ "$(cat "$home/installed")" = "$stamp" ] && "$home/venv/bin/covey" --version >/dev/null 2>&1; then
        drop_replaced
        say "Covey is installed in '$home' already, from these very wheels"
        return
    fi
    # Empty is no stamp, and still says, if this run fails, that the next one upgrades.
    if [ -f "$home/installed" ]; then
        upgraded=1
        : >"$home/installed"
    fi
    had=''
    [ ! -x "$home/venv/bin/covey" ] || had=1
    say "Installing Covey into '$home' (up to a minute)"
    old_ifs=$IFS
    IFS='
'
    set -f
    # shellcheck disable=SC2086 # a path a line
    set -- $own
    set +f
    IFS=$old_ifs
    pip_install "$home/venv" "$@" || fail "pip could not install it; it says why above. What was there is as it was"
    # Another wheel of the same version is none to pip.
    [ -z "$had" ] || pip_install "$home/venv" --force-reinstall --no-deps "$@" || fail "pip could not install it; it says why above"
    "$home/venv/bin/covey" --version >/dev/null || fail "'$home/venv/bin/covey' doesn't start"
    drop_replaced
    printf '%s\n' "$stamp" >"$home/installed"
}

# Out of clean_up's sight at once: who ends the run while it is removed must not get half of it back.
drop_replaced() {
    rm -rf "$home/venv.gone"
    [ ! -d "$home/venv.before" ] || mv "$home/venv.before" "$home/venv.gone"
    rm -rf "$home/venv.gone"
}

install_vllm() {
    [ "$(uname -s)" = Linux ] || fail "--with-vllm: vLLM is for Linux"
    # Its interpreter may have gone, with an upgrade of the system's.
    if [ -x "$home/vllm/bin/vllm" ] && "$home/vllm/bin/python" -c '' 2>/dev/null; then
        say "vLLM is installed in '$home/vllm' already"
    else
        say "Installing vLLM into '$home/vllm' (some gigabytes)"
        rm -rf "$home/vllm"
        "$python" -m venv --without-pip "$home/vllm" || fail "'$python' can't make a virtual environment"
        constraints=''
        pip_install "$home/vllm" vllm || {
            rm -rf "$home/vllm"
            fail "pip could not install vLLM; it says why above. Covey itself is installed"
        }
    fi
    link "$home/vllm/bin/vllm" vllm
    case $("$home/vllm/bin/python" -c 'from importlib.metadata import version; print(version("vllm"))' 2>/dev/null) in
        '' | *+*cpu*) ;;
        *) say "This vLLM is a build for cards. Covey runs vLLM on processors only so far, and won't offer it: give the
path of a build for them (its version ends in '+cpu') in the Node's \`spec.engines\`" ;;
    esac
}

# A file that is there and isn't our link belongs to somebody.
link() {
    mkdir -p "$prefix/bin"
    if [ -L "$prefix/bin/$2" ] && [ "$(readlink "$prefix/bin/$2")" = "$1" ]; then return; fi
    if [ -e "$prefix/bin/$2" ] || [ -L "$prefix/bin/$2" ]; then
        case $(readlink "$prefix/bin/$2" || true) in
            */share/covey/*) ;;
            *) fail "'$prefix/bin/$2' is there and isn't this installer's: move it away, or name another --prefix" ;;
        esac
    fi
    ln -sfn "$1" "$prefix/bin/$2"
}

look_at_path() {
    case ":$PATH:" in *":$prefix/bin:"*) return ;; esac
    line="export PATH=\"$prefix/bin:\$PATH\""
    if [ -z "$headless" ]; then
        printf "'%s' isn't on PATH. Add it in ~/.profile? [y/N] " "$prefix/bin"
        read -r answer || answer=n
        case $answer in
            y | Y | yes)
                grep -qxF "$line" "$HOME/.profile" 2>/dev/null || printf '%s\n' "$line" >>"$HOME/.profile"
                return
                ;;
        esac
    fi
    say "'$prefix/bin' isn't on PATH: $line"
}

start_service() {
    PATH="$prefix/bin:$PATH"
    export PATH
    if [ -n "$join" ] && [ -n "$token" ]; then
        "$prefix/bin/covey" service install join "$join" --token-file "$token"
    elif [ -n "$join" ]; then
        "$prefix/bin/covey" service install join "$join"
    elif [ -n "$up" ]; then
        "$prefix/bin/covey" service install up "$up"
    fi || {
        code=$?
        printf 'install.sh: %s\n' "Covey is installed; its service isn't running" >&2
        if [ "$code" -eq 2 ]; then exit 2; fi
        exit 1
    }
}

# What runs is told and left alone: a restart ends the engines of `up` and `join`, so a person chooses when.
tell_of_restarts() {
    [ -n "$upgraded" ] || return 0
    tell_of_units "${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user" --user
    tell_of_units /etc/systemd/system --system
    for each in "$HOME/Library/LaunchAgents"/dev.covey.*.plist; do
        if ! grep -qF "$home/" "$each" 2>/dev/null; then continue; fi
        label=$(basename "$each" .plist)
        if launchctl print "gui/$(id -u)/$label" >/dev/null 2>&1; then
            tell_of_restart "$label" "launchctl kickstart -k gui/$(id -u)/$label"
        fi
    done
}

tell_of_units() {
    for each in "$1"/covey-*.service; do
        if ! grep -qF "$home/" "$each" 2>/dev/null; then continue; fi
        unit=$(basename "$each")
        if systemctl "$2" is-active --quiet "$unit" 2>/dev/null; then
            tell_of_restart "$unit" "systemctl $2 restart $unit"
        fi
    done
}

tell_of_restart() { say "$1 still runs what was installed before, and starts parts of the new version. Restart it soon: $2"; }

main() {
    find_python
    if [ -n "$from" ]; then
        find_folder
        choose_wheels
    fi
    make_environment
    if [ -z "$from" ]; then
        build_wheels
        choose_wheels
    fi
    install_covey
    link "$home/venv/bin/covey" covey
    link "$home/venv/bin/kubectl-covey" kubectl-covey
    [ -z "$vllm" ] || install_vllm
    look_at_path
    start_service
    tell_of_restarts
    say "The doctor's look at this machine:"
    PATH="$prefix/bin:$PATH" "$prefix/bin/covey" doctor || fail "Covey is installed; mend what is broken above"
    say "Done. Next: covey up DIR, or covey join URL; covey --help lists the rest."
}

# On the last line, so that half of this script does nothing.
main
