#!/bin/sh
# captured.sh EPA2A CONFIG: runs if EPA2A_ROUTING_DATA names the folder of the logs, like the unit
# test of their reader.
if [ -z "${EPA2A_ROUTING_DATA-}" ]; then
    echo "SKIP: EPA2A_ROUTING_DATA names no folder with captured routing"
    exit 77
fi
LOGS=$EPA2A_ROUTING_DATA
export LOGS
unset EPA2A_ROUTING_DATA # epa2a would warn about the unknown variable
exec "$1" verify "$2"
