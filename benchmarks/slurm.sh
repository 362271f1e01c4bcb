#!/usr/bin/env bash
# Start Slurm with one node on this machine, train a sweep with it (slurm.py), and stop it again.
# As root on Debian, it installs Slurm and munge if they are missing. Usage: benchmarks/slurm.sh [PYTHON]
set -euo pipefail
python=${1:-.venv/bin/python}
PATH=$PATH:/usr/sbin
missing=
for name in slurmctld slurmd munged sbatch; do command -v "$name" > /dev/null || missing=$name; done
if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || { echo "install slurm-wlm and munge first" >&2; exit 2; }
    apt-get install --yes --no-install-recommends slurm-wlm munge
fi

home=$(mktemp -d)
chmod 755 "$home"
export SLURM_CONF=$home/slurm.conf
stop() {
    for name in slurmd slurmctld munged; do
        pid=$(cat "$home/$name.pid" 2> /dev/null) || continue
        kill "$pid" || continue
        while kill -0 "$pid" 2> /dev/null; do sleep 0.1; done
    done
    rm -rf "$home"
}
trap stop EXIT

# No cgroups: a container may not write them. Unusual ports: another Slurm may already be running.
cat > "$SLURM_CONF" <<CONF
ClusterName=bench
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=26817
SlurmdPort=26818
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$home/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobCompType=jobcomp/filetxt
JobCompLoc=$home/finished
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/spool
SlurmctldPidFile=$home/slurmctld.pid
SlurmdPidFile=$home/slurmd.pid
SlurmctldLogFile=$home/slurmctld.log
SlurmdLogFile=$home/slurmd.log
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=bench Nodes=ALL Default=YES MaxTime=60 State=UP
CONF
mkdir "$home/state" "$home/spool"
touch "$home/finished"
head -c 1024 /dev/urandom > "$home/munge.key"
chmod 600 "$home/munge.key"
munged --key-file="$home/munge.key" --socket="$home/munge.socket" --pid-file="$home/munged.pid" \
    --log-file="$home/munged.log" --seed-file="$home/munged.seed"
slurmctld
slurmd

for _ in $(seq 60); do
    [ "$(sinfo --noheader --format=%T 2> /dev/null)" = idle ] && break
    sleep 1
done
sinfo
if [ "$(sinfo --noheader --format=%T)" != idle ]; then
    tail -n 20 "$home"/*.log >&2
    exit 1
fi
"$python" benchmarks/slurm.py "$home/rows"
echo "Jobs that Slurm finished:"
sed 's/ WorkDir=.*//' "$home/finished"
