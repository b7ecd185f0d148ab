//go:build linux

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

const nvmeNQN = "nqn.2014-08.org.example:softrnic"

// nvmeLab is a target in this process, and a peer whose kernel is its host.
type nvmeLab struct {
	cmLab
	target *target.Target
	file   string // the namespace
}

func newNVMeLab(t *testing.T, transport verbs.Transport, size int64) *nvmeLab {
	t.Helper()
	p := cmPeer(t, 2, transport)
	dev := openSoftRNIC(t, openTAP(t, p.Netns), nil).(softrnic).dev
	l := &nvmeLab{cmLab: cmLab{p, dev, transport}, file: filepath.Join(t.TempDir(), "disk")}
	disk, err := target.OpenFile(l.file, &target.FileConfig{Size: size})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, disk.Close)
	if l.target, err = target.Listen(l.dev, netip.AddrPortFrom(softrnicAddr4, 4420).String(), &target.Config{
		NQN: nvmeNQN, Namespaces: []target.Namespace{{Backend: disk}},
	}); err != nil {
		t.Fatal(err)
	}
	closing(t, l.target.Close)
	l.prepare(t)
	return l
}

// prepare makes the peer ready to be a host.
func (l *nvmeLab) prepare(t *testing.T) {
	t.Helper()
	l.peer.MountStorage(t)
	l.peer.Run(t, "modprobe -a nvme_rdma ext4")
	t.Cleanup(func() {
		if t.Failed() {
			out, _, _ := l.peer.Exec(context.Background(), "dmesg | tail -n 40")
			t.Logf("the peer's kernel:\n%s", out)
		}
		_, _, _ = l.peer.Exec(context.Background(), ". /storage.sh; umount /mnt 2>/dev/null; nvme disconnect-all")
	})
}

// run runs a command in the peer, which finds the programs of storage.
func (l *nvmeLab) run(t *testing.T, command string) string {
	t.Helper()
	return l.peer.Run(t, ". /storage.sh; set -e\n"+command)
}

const nvmeConnect = "nvme connect -t rdma -a 10.77.0.100 -s 4420 -n " + nvmeNQN + " --nr-io-queues 2 --nr-write-queues 2"

// untilDisk waits for the block device, and sets disk and ctrl.
const untilDisk = `
for try in $(seq 300); do [ -b /dev/nvme0n1 ] && break; sleep 0.05; done
ctrl=/dev/$(basename $(ls -d /sys/class/nvme/nvme*)) disk=/dev/nvme0n1
`

// TestNVMe: Linux's nvme-rdma finds the target by discovery, and connects with 4 I/O queues. It
// learns of a changed size, makes a file system, verifies what it has written, resets the
// controller, and leaves.
func TestNVMe(t *testing.T) {
	gate.System(t)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			l := newNVMeLab(t, transport, 32<<20)
			tracePort(t, l.peer)
			if out := l.run(t, "nvme discover -t rdma -a 10.77.0.100 -s 4420"); !strings.Contains(out, "subnqn:  "+nvmeNQN) ||
				!strings.Contains(out, "traddr:  10.77.0.100") {
				t.Errorf("discover:\n%s", out)
			}
			out := l.run(t, nvmeConnect+untilDisk+`
dmesg | grep -o 'mapped .* queues' | tail -n 1
nvme id-ctrl $ctrl
nvme id-ns $disk
nvme smart-log $ctrl
nvme error-log $ctrl -e 1
nvme list-subsys`)
			for _, want := range []string{`subnqn +: ` + nvmeNQN, `mn +: SoftRNIC`, `nsze +: 0x10000\n`, `data_units_read|Data Units Read`,
				`error_count`, `rdma traddr=10.77.0.100,trsvcid=4420 live`} {
				if !regexp.MustCompile(want).MatchString(out) {
					t.Errorf("%s is not in\n%s", want, out)
				}
			}
			if s := l.target.Stats(); s.Controllers != 1 || s.Queues != 5 {
				t.Errorf("%+v: want 1 controller with 5 queues", s)
			}
			if err := os.Truncate(l.file, 40<<20); err != nil {
				t.Fatal(err)
			}
			l.run(t, "until [ $(cat /sys/block/nvme0n1/size) = 81920 ]; do sleep 0.05; done") // the kernel learns of it by itself
			l.run(t, untilDisk+`
mkfs.ext4 -q -F $disk
mkdir -p /mnt
mount -t ext4 $disk /mnt
cd /mnt
fio --name=v --filename=/mnt/f --size=2M --bsrange=4k-256k --rw=randrw --iodepth=16 --ioengine=libaio --direct=1 --verify=crc32c \
  --verify_fatal=1 --fsync=64 --output-format=terse >/dev/null
nvme reset $ctrl
sha256sum f >g
cd /
umount /mnt
mount -t ext4 -o discard $disk /mnt
cd /mnt
sha256sum -c g
rm f
cd /
umount /mnt
fsck.ext4 -fn $disk
nvme disconnect -n `+nvmeNQN)
			awaitNoHosts(t, l.target)
			if out, err := exec.Command("e2fsck", "-fn", l.file).CombinedOutput(); err != nil {
				t.Errorf("e2fsck of the file: %v\n%s", err, out)
			}
			if s := l.target.Stats(); s.ReadBytes < 2<<20 || s.WrittenBytes < 2<<20 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// awaitNoHosts waits until no host is connected.
func awaitNoHosts(t *testing.T, target *target.Target) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s := target.Stats()
		if s.Queues == 0 && s.Controllers == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", s)
		}
	}
}

// nvmeServing is `softrnic nvme serve` in the network of a peer, which a test may kill.
type nvmeServing struct {
	*nvmeLab
	program string
	process *process
}

func (s *nvmeServing) start(t *testing.T) {
	t.Helper()
	s.process = startProcess(t, s.peer.Netns.Command(t.Context(), s.program, "nvme", "serve", "--namespace", s.file+",size=1G",
		"--nqn", nvmeNQN, "--link", "tap:softrnic0,bridge="+s.peer.Netns.Bridge, "--mac", softrnicMAC.String(), "--addr", softrnicCIDR4))
	s.process.await(t, "msg=serving")
}

// cut takes the peer off the network for a time.
func (s *nvmeServing) cut(t *testing.T, d time.Duration) {
	t.Helper()
	link := func(state string) {
		port := "peer" + strconv.Itoa(s.peer.ID)
		if out, err := exec.Command("ip", "-n", s.peer.Netns.Name, "link", "set", port, state).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	link("down")
	time.Sleep(d)
	link("up")
}

// TestNVMeLong: ext4 and xfs with 10,000 files, sequential and random I/O of all sizes, 64 deep,
// and trims; the target killed and started again under fio, and the link cut for 5 and for 60
// seconds.
func TestNVMeLong(t *testing.T) {
	gate.Long(t)
	program := softrnicProgram(t)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			p := cmPeer(t, 2, transport)
			l := &nvmeLab{cmLab: cmLab{peer: p, transport: transport}, file: filepath.Join(p.Netns.Dir, "disk")}
			l.prepare(t)
			s := &nvmeServing{nvmeLab: l, program: program}
			s.start(t)
			l.run(t, "modprobe xfs; "+nvmeConnect+" --reconnect-delay 1 --ctrl-loss-tmo 600")
			for _, fs := range []string{"mkfs.ext4 -q -F", "mkfs.xfs -q -f"} {
				t.Run(strings.Fields(fs)[0], func(t *testing.T) { s.files(t, fs) })
			}
			s.fio(t, "trims", "--rw=randtrimwrite --size=64M --bs=64k", func() {})
			s.fio(t, "small", "--rw=randrw --size=16M --bs=4k", func() {})
			s.fio(t, "sequential", "--rw=write --size=256M --bs=1M", func() {})
			s.fio(t, "target killed", "--rw=randrw --bsrange=4k-1M --size=256M --time_based --runtime=30", func() {
				_ = s.process.cmd.Process.Kill()
				<-s.process.ended
				s.start(t)
			})
			for _, seconds := range []time.Duration{5, 60} {
				const load = "--rw=randrw --bsrange=4k-1M --size=256M --time_based --runtime=30"
				s.fio(t, fmt.Sprintf("cut for %d s", seconds), load, func() { s.cut(t, seconds*time.Second) })
			}
			l.run(t, "nvme disconnect -n "+nvmeNQN)
			_ = s.process.cmd.Process.Signal(os.Interrupt)
			s.process.wait(t)
		})
	}
}

// files makes a file system with 10,000 files, and compares them after it was unmounted.
func (s *nvmeServing) files(t *testing.T, mkfs string) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	out, code, err := s.peer.Exec(ctx, ". /storage.sh; set -e"+untilDisk+mkfs+` $disk
mkdir -p /mnt
mount $disk /mnt
mkdir /mnt/d
cd /mnt/d
for dir in $(seq 100); do
  mkdir $dir
  for file in $(seq 100); do head -c $((dir * file)) /dev/urandom >$dir/$file; done
done
find . -type f | sort | xargs sha256sum >../sums
cd /
umount /mnt
mount $disk /mnt
cd /mnt/d
sha256sum -c ../sums >/dev/null
find . -type f | wc -l
cd ..
rm -rf d
cd /
umount /mnt`)
	if err != nil || code != 0 || !strings.Contains(out, "10000") {
		t.Errorf("exits with %d, %v\n%s", code, err, out)
	}
}

// fio runs fio with verification on the block device, and during, while it runs.
func (s *nvmeServing) fio(t *testing.T, name, args string, during func()) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		was := s.written(t)
		fio, err := s.peer.Start(". /storage.sh; set -e" + untilDisk + "fio --name=v --filename=$disk --iodepth=64 --ioengine=libaio " +
			"--direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1 --output-format=terse " + args)
		if err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		for s.written(t).Equal(was) { // until a write of fio has arrived
			if time.Since(before) > patience {
				t.Fatalf("fio writes nothing:\n%s", fio.Output())
			}
			time.Sleep(10 * time.Millisecond)
		}
		during()
		code, err := fio.Wait(ctx)
		if err != nil || code != 0 {
			t.Errorf("exits with %d, %v\n%s", code, err, fio.Output())
		}
		t.Logf("result: %s in %v", name, time.Since(before).Round(time.Second))
	})
}

// written returns when the target has last written to its file.
func (s *nvmeServing) written(t *testing.T) time.Time {
	t.Helper()
	info, err := os.Stat(s.file)
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime()
}

// TestNVMeSockets: the target runs as nobody, on the machine's own sockets.
func TestNVMeSockets(t *testing.T) {
	gate.Long(t)
	program := softrnicProgram(t)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			runtimeDirectoryOfNobody(t)
			l := &nvmeLab{cmLab: cmLab{peer: cmPeer(t, 2, transport), transport: transport}, file: filepath.Join(forNobody(t), "disk")}
			l.prepare(t)
			args := "nvme serve --link kernel:" + l.peer.Netns.Bridge + " --addr 10.77.0.1 --namespace " + l.file + ",size=64M --nqn " + nvmeNQN
			server := startProcess(t, l.peer.Netns.Command(t.Context(), "setpriv", asNobody(program, args)...))
			server.await(t, "msg=serving")
			l.run(t, strings.Replace(nvmeConnect, "10.77.0.100", "10.77.0.1", 1))
			s := &nvmeServing{nvmeLab: l, process: server}
			s.fio(t, "fio", "--rw=randrw --bsrange=4k-1M --size=32M", func() {})
			l.run(t, "nvme disconnect -n "+nvmeNQN)
			_ = server.cmd.Process.Signal(os.Interrupt)
			server.wait(t)
		})
	}
}
