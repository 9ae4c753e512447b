#!/bin/sh
# Installs servers that some scenario tests use if they are there: RabbitMQ and PgBouncer. For CI, as
# root on Debian or Ubuntu; anywhere else, and if it fails, it says so and the tests skip what needs
# them. Starts no service: tests start instances of their own.
set -u

missing=
for program in rabbitmq-server pgbouncer; do
    [ -x "/usr/sbin/$program" ] || command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "install-extras: not root on Debian; tests skip what needs$missing" >&2
    exit 0
fi

export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 # this runlevel: no service is started
apt="apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2"
# shellcheck disable=SC2086  # both are lists
if ! timeout 600 $apt install --no-install-recommends -y $missing >/dev/null 2>&1; then
    timeout 300 $apt update >/dev/null 2>&1
    timeout 600 $apt install --no-install-recommends -y $missing >/dev/null 2>&1 ||
        echo "install-extras: could not install$missing; tests skip what needs them" >&2
fi
exit 0
