# The disks under test: three namespaces of the NVMe controller at $DISK.

SUPERVISED=disk
disks_found() {
    for try in $(seq 1200); do
        [ -b ${1}1 ] && [ -b ${1}2 ] && [ -b ${1}3 ] && break
        sleep 0.05
    done
    [ -b ${1}3 ] || { echo "there are no disks ${1}1 to 3"; return 1; }
    UNDER_TEST="FIRST=${1}1 SECOND=${1}2 THIRD=${1}3"
}
# The block devices begin at 1, as namespaces do.
on_kernel() { disks_found /dev/nvme0n; }
exported() {
    ring3 run nvme --device vfio:$DISK --in-process --id 1 >/run/ready 2>/run/log &
    disks_found /dev/ublkb || { cat /run/ready /run/log; return 1; }
}
supervised() {
    describe disk $DISK 'id = 1' "$TERMS"
    ring3d >/tmp/ring3d.log 2>&1 &
    disks_found /dev/ublkb || { cat /tmp/ring3d.log; return 1; }
}
