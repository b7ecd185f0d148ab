# Runs an MPI job with a rank here and a rank in the container with the address $1.
set -e
export OMPI_MCA_plm_rsh_agent='ssh -p 2222 -i /id/id -o LogLevel=ERROR -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null'
$OMPI_MCA_plm_rsh_agent "$1" ibv_devices
exec mpirun -np 2 --host "$(hostname -i):1,$1:1" --mca orte_tmpdir_base /dev/shm --mca pml ucx --mca btl ^openib,tcp,vader \
	-x UCX_TLS=rc_v,self -x UCX_NET_DEVICES=softrnic0:1 /programs/mpi
