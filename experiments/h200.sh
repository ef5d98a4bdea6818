#!/usr/bin/env bash
# About 40 minutes on one H200, in calls that end after MINUTES (default 9): call it again until it says "done".
# First the checks of the GPU, then KEP-SVGP and softmax attention on CIFAR-10 at full size, beside Table 1 of the paper.
#
# usage: experiments/h200.sh OUT DATA [MINUTES]      PROBATTN=path/to/probattn, SEEDS=5, SETTINGS="key=value ..."
set -euo pipefail
out=${1:?a folder for the results} data=${2:?the folder of the data sets} minutes=${3:-9}
probattn=${PROBATTN:-probattn}
settings=${SETTINGS:-train.compile=true train.precision=bf16-mixed}
end=$((SECONDS + 60 * minutes))
mkdir -p "$out"

again() {
  echo "time is over; call it again"
  exit 75
}

if [ ! -e "$out/gpu-check.txt" ]; then
  "$probattn" check-gpu | tee "$out/gpu-check.new"
  mv "$out/gpu-check.new" "$out/gpu-check.txt"
fi
echo "settings: $settings"

changes=()
for each in $settings; do changes+=(--set "$each"); done
for ((seeds = 1; seeds <= ${SEEDS:-5}; seeds++)); do
  ((SECONDS < end)) || again
  timeout --signal=INT --kill-after=20 $((end - SECONDS)) "$probattn" reproduce kep-svgp/table-1 \
    kep-svgp/cifar10-softmax kep-svgp/cifar10-paper kep-svgp/cifar10 --seeds "$seeds" --workers 1 --data "$data" \
    --out "$out" "${changes[@]}" || { (($? == 124 || $? == 137)) && again; exit 1; }
done
echo "done: $out/kep-svgp/table-1.md"
