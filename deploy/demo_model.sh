#!/bin/sh
# Make the demo model in FOLDER if there is none: trained on MovieLens-100K, or, where the ratings
# cannot be had (narsil train ends with 3), the reference model with seeded weights.
set -eu
folder=$1
[ -e "$folder/manifest.json" ] && exit 0
narsil train movielens "$folder" || {
    [ $? = 3 ] || exit 1
    echo "no MovieLens data: $folder gets random weights" >&2
    narsil export "$folder" --preset reference
}
