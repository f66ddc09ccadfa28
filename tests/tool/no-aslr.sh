#!/bin/sh
# Runs a program without address randomisation where that is allowed: the thread
# sanitizer's fixed layout does not fit every randomised one.
if setarch -R true 2>/dev/null; then
    exec setarch -R "$@"
fi
exec "$@"
