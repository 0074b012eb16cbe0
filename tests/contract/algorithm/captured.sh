#!/bin/sh
# captured.sh EPA2A CONFIG: where the tester has the logs, as the unit test of their reader.
if [ -z "${EPA2A_ROUTING_DATA-}" ]; then
    echo "SKIP: EPA2A_ROUTING_DATA names no folder with captured routing"
    exit 77
fi
exec "$1" verify "$2"
