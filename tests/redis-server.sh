#!/bin/sh
# Have redis-server here for the tests, from the packages of Debian or Ubuntu; where it is there already, nothing is
# done. The tests start servers of their own: the service that the package brings is neither started nor enabled.
set -eu

if command -v redis-server >/dev/null; then
    exit 0
fi

give_up() {
    echo "The tests need redis-server, which is not here, and $1." >&2
    echo "Install it and have it on the PATH: sudo apt-get install redis-server" >&2
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

# openssl makes the certificates of the tests.
echo 'installing redis-server, for the tests'
# An index that cannot be updated may do all the same.
$as_root apt-get update -qq || true
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends redis-server openssl >/dev/null ||
    give_up "apt-get could not install it"
if [ -d /run/systemd/system ]; then
    $as_root systemctl disable --now --quiet redis-server || true
fi
command -v redis-server >/dev/null || give_up "the package brought none"
