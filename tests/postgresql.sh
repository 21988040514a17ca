#!/bin/sh
# Have a PostgreSQL server here for the tests, from the packages of Debian or Ubuntu; where one is there already, nothing
# is done. The tests start servers of their own: the service that the package brings is not started.
set -eu

there() {
    command -v initdb >/dev/null && return
    for program in "${POSTGRESQL:-/usr/lib/postgresql}"/*/bin/initdb; do
        [ -x "$program" ] && return
    done
    return 1
}

there && exit 0

give_up() {
    echo "The tests need PostgreSQL, which is not here, and $1." >&2
    echo "Install it: sudo apt-get install postgresql" >&2
    exit 1
}

command -v apt-get >/dev/null || give_up "there is no apt-get to install it with"

if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    as_root=sudo
else
    give_up "installing it takes root, or sudo"
fi

# What a package asks before it starts its service: 101 is no. One that is there already is left alone.
policy=${POLICY_RC_D:-/usr/sbin/policy-rc.d}
if [ ! -e "$policy" ]; then
    # Nothing is left behind, however this ends.
    trap '$as_root rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
fi

echo 'installing postgresql, for the tests'
# An index that cannot be updated may do all the same.
$as_root apt-get update -qq || true
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends postgresql >/dev/null ||
    give_up "apt-get could not install it"
there || give_up "the package brought none"
