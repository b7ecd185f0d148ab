//go:build linux

package interop

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// nfsLab is a directory that softrnic nfs serve exports, and peers whose kernels mount it.
type nfsLab struct {
	t       *testing.T
	ctx     context.Context
	program string
	dir     string
	peer    *peer.Peer // in whose network the server is
}

var nfsAddr, nfsReadOnlyAddr = netip.MustParseAddr("10.77.0.102"), netip.MustParseAddr("10.77.0.103")

func newNFSLab(t *testing.T, p *peer.Peer, dir string, limit time.Duration) *nfsLab {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	l := &nfsLab{t: t, ctx: ctx, program: softrnicProgram(t), dir: dir, peer: p}
	t.Cleanup(func() {
		out, _, _ := p.Exec(context.Background(), "dmesg | grep -E 'rxe|siw|rpcrdma|RPC|nfs' | tail -n 40")
		t.Logf("the peer's kernel:\n%s", out)
		_, _, _ = p.Exec(context.Background(), "umount -f -l /mnt/nfs /mnt/ro")
	})
	return l
}

// serve starts a server at an address, on a TAP in the peer's network.
func (l *nfsLab) serve(addr netip.Addr, options string) *process {
	l.t.Helper()
	n := l.peer.Netns
	args := fmt.Sprintf("netns exec %s %s nfs serve %s %s --counters --link tap:nfs%d,bridge=%s --addr %v/24 --mtu %d", n.Name, l.program,
		l.dir, options, addr.As4()[3], n.Bridge, addr, n.MTU)
	s := startProcess(l.t, exec.CommandContext(l.ctx, "ip", strings.Fields(args)...))
	s.await(l.t, "msg=serving")
	return s
}

// stop stops a server, which must have seen no damaged packets.
func (l *nfsLab) stop(s *process) {
	l.t.Helper()
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		l.t.Fatal(err)
	}
	s.wait(l.t)
	s.noDamage(l.t)
}

// mount is the command that mounts an export, the one of cmd/softrnic/README.md.
func (l *nfsLab) mount(addr netip.Addr, at string) string {
	return fmt.Sprintf("mkdir -p %[2]s && "+
		"mount.nfs %[1]v:/ %[2]s -o rdma,vers=3,nolock", addr, at)
}

// run runs shell commands in a peer, as one script that ends with the first failure.
func (l *nfsLab) run(t *testing.T, p *peer.Peer, commands ...string) string {
	t.Helper()
	commands = append([]string{". /storage.sh", "set -e", "exec 2>&1"}, commands...)
	out, code, err := p.Exec(l.ctx, strings.Join(commands, "\n"))
	if err != nil || code != 0 {
		t.Fatalf("peer %d: exit status %d, %v\n%s", p.ID, code, err, tailOf(out, 3000))
	}
	return out
}

func (l *nfsLab) path(name string) string { return filepath.Join(l.dir, name) }

// fill writes a file of n bytes, and returns its digest in hexadecimal.
func (l *nfsLab) fill(t *testing.T, name string, n int64) string {
	t.Helper()
	f, err := os.Create(l.path(name))
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	random, err := os.Open("/dev/urandom")
	if err == nil {
		_, err = io.CopyN(io.MultiWriter(f, h), random, n)
		_ = random.Close()
	}
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// files makes a directory of so many empty files.
func (l *nfsLab) files(t *testing.T, dir string, n int) {
	t.Helper()
	err := os.Mkdir(l.path(dir), 0o755)
	for i := 0; i < n && err == nil; i++ {
		err = os.WriteFile(l.path(fmt.Sprintf("%s/%06d", dir, i)), nil, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// digest returns the digest of a file.
func (l *nfsLab) digest(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(l.path(name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

const (
	nfsModules = "modprobe -a rpcrdma nfs nfsv3"
	dropCaches = "sync; echo 3 >/proc/sys/vm/drop_caches"
)

// TestNFS: a kernel mounts a directory over rxe and over siw. It reads and writes files, changes
// the tree, and cannot change a read-only export.
func TestNFS(t *testing.T) {
	gate.System(t)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			p := cmPeer(t, 2, transport)
			p.MountStorage(t)
			dir, err := os.MkdirTemp("/dev/shm", "nfs") // where fsync takes no time
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			l := newNFSLab(t, p, dir, 10*time.Minute)
			tracePort(t, p)
			there := l.fill(t, "there", 6<<20+12345)
			if err := os.WriteFile(l.path("replaced"), []byte("first"), 0o644); err != nil {
				t.Fatal(err)
			}
			l.files(t, "many", 3000)
			server, readOnly := l.serve(nfsAddr, ""), l.serve(nfsReadOnlyAddr, "--read-only")
			out := l.run(t, p, nfsModules,
				l.mount(nfsAddr, "/mnt/nfs"), "cd /mnt/nfs", "grep /mnt/nfs /proc/mounts",
				"echo digest $(sha256sum <there)",
				"dd if=/dev/urandom of=/tmp/here bs=100001 count=60 2>/dev/null", "cp /tmp/here here", dropCaches, "cmp /tmp/here here",
				// Inline data, and small changes in the middle.
				"echo text >small", "printf X | dd of=small bs=1 seek=2 conv=notrunc 2>/dev/null", "echo more >>small",
				dropCaches, `[ "$(cat small)" = "$(printf 'teXt\nmore')" ]`,
				"truncate -s 5G sparse", "printf end | dd of=sparse bs=1 seek=5368709117 conv=notrunc 2>/dev/null",
				dropCaches, "[ $(stat -c %s sparse) = 5368709120 ]", `[ "$(tail -c 3 sparse)" = end ]`, "rm sparse",
				// Names.
				"mkdir -p tree/a/b", "for i in $(seq 100); do echo $i >tree/a/file-with-a-long-name-$i; done",
				dropCaches, "[ $(ls tree/a | wc -l) = 101 ]", "[ $(cat tree/a/file-* | wc -l) = 100 ]",
				"mv tree/a/file-with-a-long-name-7 tree/a/b/seven", "mv tree/a/b tree/c", "[ $(cat tree/c/seven) = 7 ]",
				"ln -s ../c/seven tree/a/link", "[ $(cat tree/a/link) = 7 ]", "[ $(readlink tree/a/link) = ../c/seven ]",
				"ln tree/c/seven tree/hard", "[ $(stat -c %h tree/hard) = 2 ]",
				// An open file may be renamed and removed.
				"exec 3<>tree/hard", "mv tree/hard tree/moved", "rm tree/moved tree/c/seven", "echo end >&3", "exec 3>&-",
				"rmdir tree 2>&1 | grep -i 'not empty'",
				"( set -C; echo >new; ! echo >new ) 2>/dev/null",
				"chmod 4755 small", "chmod 1777 tree", dropCaches, `[ "$(stat -c %a small tree)" = "$(printf '4755\n1777')" ]`,
				"mkfifo tree/fifo", "( echo through >tree/fifo & )", "[ $(cat tree/fifo) = through ]",
				"cat replaced")
			// Another program replaces data by as much, and sets back the time.
			info, err := os.Stat(l.path("replaced"))
			if err == nil {
				err = os.WriteFile(l.path("replaced"), []byte("later"), 0o644)
			}
			if err == nil {
				err = os.Chtimes(l.path("replaced"), time.Time{}, info.ModTime())
			}
			if err != nil {
				t.Fatal(err)
			}
			out += l.run(t, p, "cd /mnt/nfs", "[ $(cat replaced) = later ]", "rm replaced",
				"[ $(find many -type f | wc -l) = 3000 ]",
				"chmod 600 here", "touch -d @1000000000 here", "stat -c '%a %Y' here",
				"rm -rf tree", "[ ! -e tree ]", "cd /",
				"grep -A20 /mnt/nfs /proc/self/mountstats | grep xprt", "umount /mnt/nfs",
				// The other export.
				l.mount(nfsReadOnlyAddr, "/mnt/ro"), "cd /mnt/ro", "cmp /tmp/here here",
				"for c in 'rm here' 'touch here' 'mkdir d' 'mv here x' 'ln here x' 'ln -s x y' 'truncate -s 0 here' 'chmod 644 here'; do "+
					"! $c 2>/dev/null || { echo $c succeeds; exit 1; }; done",
				"cd /", "umount /mnt/ro")
			t.Logf("the kernel's counters: %s", out)
			if transport == verbs.IWARP {
				l.someRules(t)
			}
			if !strings.Contains(out, "proto=rdma") || !strings.Contains(out, "digest "+there) || !strings.Contains(out, "600 1000000000") {
				t.Errorf("the file that was there has digest %s; the peer says:\n%s", there, out)
			}
			if got := l.run(t, p, "sha256sum </tmp/here"); !strings.HasPrefix(got, l.digest(t, "here")) {
				t.Errorf("the file that the peer has written has digest %s; the peer's is %s", l.digest(t, "here"), got)
			}
			l.stop(server)
			l.stop(readOnly)
			var names []string
			entries, err := os.ReadDir(dir)
			for _, e := range entries {
				names = append(names, e.Name())
			}
			if strings.Join(names, " ") != "here many new small there" || err != nil {
				t.Errorf("left: %q, %v", names, err)
			}
		})
	}
}

// TestNFSLong: two kernels copy 10,000 files, read and write files of 2 GiB, and run fio with
// verification at the same time. The server is killed while one of them writes, and started again.
func TestNFSLong(t *testing.T) {
	gate.Long(t)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			peers := []*peer.Peer{cmPeer(t, 2, transport), cmPeer(t, 3, transport)}
			l := newNFSLab(t, peers[0], t.TempDir(), 50*time.Minute)
			server := l.serve(nfsAddr, "")
			dirs := []string{"/mnt/nfs/2", "/mnt/nfs/3"}
			for i, p := range peers {
				p.MountStorage(t)
				l.run(t, p, nfsModules, l.mount(nfsAddr, "/mnt/nfs"), "mkdir "+dirs[i])
				defer func() { _, _, _ = p.Exec(context.Background(), "umount -f -l /mnt/nfs") }()
			}
			step := func(what string, f func(t *testing.T)) {
				t.Run(what, func(t *testing.T) {
					began := time.Now()
					f(t)
					t.Logf("result: %v: %s: %v", transport, what, time.Since(began).Round(time.Second))
				})
			}
			step("fio of two clients", func(t *testing.T) {
				done := make(chan string, len(peers))
				for i, p := range peers {
					go func() {
						out, code, err := p.Exec(l.ctx, ". /storage.sh; cd "+dirs[i]+"; "+
							"fio --name=r --rw=randrw --bsrange=4k-1M --size=48M --numjobs=2 --verify=crc32c --ioengine=psync --direct=1 && "+
							"fio --name=s --rw=write --bs=1M --size=96M --verify=crc32c --ioengine=psync --end_fsync=1 && "+
							"fio --name=c --rw=randwrite --bs=4k --size=8M --verify=crc32c --ioengine=psync --fsync=16 && rm -f *.0")
						if err != nil || code != 0 {
							done <- fmt.Sprintf("peer %d: exit status %d, %v\n%s", p.ID, code, err, tailOf(out, 2000))
						} else {
							done <- ""
						}
					}()
				}
				for range peers {
					if failed := <-done; failed != "" {
						t.Error(failed)
					}
				}
			})
			step("killed and started again", func(t *testing.T) {
				server = l.killed(t, "/mnt/nfs", "2/data", server, func() *process { return l.serve(nfsAddr, "") })
			})
			step("across 4 GiB", func(t *testing.T) {
				l.run(t, peers[0], "cd /mnt/nfs/2", "dd if=/dev/urandom of=/tmp/data bs=1000003 count=9 2>/dev/null",
					"dd if=/tmp/data of=large bs=1000003 seek=4290 2>/dev/null", dropCaches,
					"tail -c 9000027 large | cmp - /tmp/data", "[ $(stat -c %s large) = 4299012897 ]", "rm large /tmp/data")
			})
			step("speed", func(t *testing.T) {
				const size = 128
				write := fmt.Sprint("if=/dev/zero of=/mnt/nfs/2/speed bs=1M conv=fsync count=", size)
				for _, dd := range []string{write, "if=/mnt/nfs/2/speed of=/dev/null bs=1M"} {
					l.run(t, peers[0], dropCaches)
					began := time.Now()
					l.run(t, peers[0], "dd "+dd)
					t.Logf("result: %v: dd %s: %.1f MiB/s", transport, dd, size/time.Since(began).Seconds())
				}
			})
			step("10,000 files", func(t *testing.T) {
				l.run(t, peers[0], "mkdir /tmp/tree", "cd /tmp/tree",
					"for d in $(seq 100); do mkdir $d; for f in $(seq 100); do echo $d $f >$d/$f; done; done",
					"cp -r /tmp/tree /mnt/nfs/2/tree", dropCaches, "diff -r /tmp/tree /mnt/nfs/2/tree")
				l.run(t, peers[1], "[ $(find /mnt/nfs/2/tree -type f | wc -l) = 10000 ]", "mv /mnt/nfs/2/tree /mnt/nfs/3/tree",
					"cat $(find /mnt/nfs/3/tree -type f) | wc -l | grep -w 10000", "rm -rf /mnt/nfs/3/tree /tmp/tree")
			})
			step("100,000 files in a directory", func(t *testing.T) {
				l.files(t, "many", 100_000)
				out := l.run(t, peers[0], `python3 -c "import os, time; began = time.monotonic(); print(len(os.listdir('/mnt/nfs/many')), `+
					`time.monotonic() - began)"`)
				var n int
				var seconds float64
				if _, err := fmt.Sscan(out, &n, &seconds); err != nil || n != 100_000 {
					t.Errorf("a listing has %d files, %v: %s", n, err, out)
				}
				t.Logf("result: %v: a listing of 100,000 files: %.1f s", transport, seconds)
				l.run(t, peers[1], "find /mnt/nfs/many -type f -exec rm {} +", "rmdir /mnt/nfs/many")
			})
			step("2 GiB", func(t *testing.T) {
				want := l.fill(t, "large", 2<<30+12345)
				out := l.run(t, peers[0], "dd if=/mnt/nfs/large of=/mnt/nfs/2/copy bs=1M 2>&1", "sync", dropCaches, "sha256sum </mnt/nfs/2/copy")
				if got := l.digest(t, "2/copy"); got != want || !strings.Contains(out, want) {
					t.Errorf("the file has digest %s, its copy %s, and for the peer:\n%s", want, got, out)
				}
				l.run(t, peers[0], "rm /mnt/nfs/2/copy /mnt/nfs/large")
			})
			for _, p := range peers {
				l.run(t, p, "umount /mnt/nfs")
			}
			l.stop(server)
		})
	}
}

// size returns the size of a file, 0 if it does not exist.
func (l *nfsLab) size(name string) int64 {
	info, err := os.Stat(l.path(name))
	if err != nil {
		return 0
	}
	return info.Size()
}

// killed kills the server twice while the peer writes a file of the export, and starts it again. It
// returns the last one.
func (l *nfsLab) killed(t *testing.T, at, name string, server *process, start func() *process) *process {
	t.Helper()
	wrote := make(chan string, 1)
	go func() {
		out, code, err := l.peer.Exec(l.ctx, fmt.Sprintf("dd if=/dev/urandom of=/tmp/data bs=1M count=100 2>/dev/null && "+
			"dd if=/tmp/data of=%[1]s bs=64k conv=fsync && cmp /tmp/data %[1]s", filepath.Join(at, name)))
		wrote <- fmt.Sprintf("exit status %d, %v\n%s", code, err, out)
	}()
	for range 2 {
		before := l.size(name)
		for l.size(name) < before+20<<20 {
			select {
			case ended := <-wrote:
				t.Fatalf("the file has %d bytes: %s", l.size(name), ended)
			case <-time.After(10 * time.Millisecond):
			}
		}
		_ = server.cmd.Process.Kill()
		<-server.ended
		server = start()
	}
	if ended := <-wrote; !strings.HasPrefix(ended, "exit status 0, <nil>") {
		t.Error(ended)
	}
	out := l.run(t, l.peer, dropCaches, "sha256sum <"+filepath.Join(at, name), "sha256sum </tmp/data", "rm /tmp/data")
	if got := l.digest(t, name); strings.Count(out, got) != 2 {
		t.Errorf("the file has digest %s, and for the peer:\n%s", got, out)
	}
	return server
}

// TestNFSSockets: a kernel mounts a directory of a server that runs as nobody, on the machine's own
// sockets. The peer is a system without /etc/protocols. The server is killed while the peer writes,
// and started again.
func TestNFSSockets(t *testing.T) {
	gate.Long(t)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			runtimeDirectoryOfNobody(t)
			p := cmPeer(t, 2, transport)
			p.MountStorage(t)
			l := newNFSLab(t, p, forNobody(t), 10*time.Minute)
			there := l.fill(t, "there", 6<<20+12345)
			start := func() *process {
				server := startProcess(t, p.Netns.Command(l.ctx, "setpriv",
					asNobody(l.program, "nfs serve "+l.dir+" --counters --link kernel:"+p.Netns.Bridge+" --addr 10.77.0.1")...))
				server.await(t, "msg=serving")
				return server
			}
			server := start()
			const option = "mountport=20048"
			if !strings.Contains(server.stderr.String(), "clients must mount with "+option) {
				t.Errorf("it does not name the option %s:\n%s", option, server.stderr.String())
			}
			mount := l.mount(netip.MustParseAddr("10.77.0.1"), "/mnt/nfs") + "," + option
			out := l.run(t, p, nfsModules, "[ ! -e /etc/protocols ]", mount, "grep /mnt/nfs /proc/mounts", "cd /mnt/nfs", "sha256sum <there",
				"cp there copy", dropCaches, "cmp there copy", "rm there")
			if !strings.Contains(out, "proto=rdma") || !strings.Contains(out, there) || l.digest(t, "copy") != there {
				t.Errorf("the file has digest %s, the copy %s, and for the peer:\n%s", there, l.digest(t, "copy"), out)
			}
			server = l.killed(t, "/mnt/nfs", "data", server, start)
			l.run(t, p, "umount /mnt/nfs")
			l.stop(server)
		})
	}
}
