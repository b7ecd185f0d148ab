//go:build linux

package interop

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// nfsExport is the directory that a peer's kernel exports.
const nfsExport = "/tmp/export"

// exportFrom makes a peer's kernel export a directory by NFS 3 and 4 over TCP, to privileged ports,
// as is usual. NFS 3 needs rpcbind. There are no clients to wait for after its start. Linux 7.2
// refuses to be told so without nfsdcld, and clients then wait for 10 s.
func (l *nfsLab) exportFrom(t *testing.T, p *peer.Peer) {
	t.Helper()
	p.MountStorage(t)
	l.run(t, p, "modprobe nfsd", "mkdir -p /var/lib/nfs/v4recovery "+nfsExport, "touch /var/lib/nfs/etab /var/lib/nfs/rmtab",
		"mkdir -p /run/rpcbind", "[ -e /var/run ] || ln -s /run /var/run",
		"grep -q _rpc /etc/passwd || echo _rpc:x:101:65534::/run/rpcbind:/bin/sh >>/etc/passwd", "pidof rpcbind >/dev/null || rpcbind -w",
		"mount -t nfsd nfsd /proc/fs/nfsd", "exportfs -i -o rw,fsid=0,no_root_squash,no_subtree_check '*:"+nfsExport+"'",
		"rpc.nfsd -p 2049 --lease-time 10 --grace-time 10 4", "rpc.mountd -p 20048", "echo Y >/proc/fs/nfsd/v4_end_grace || :")
	t.Cleanup(func() {
		_, _, _ = p.Exec(context.Background(), ". /storage.sh; umount -f -l /mnt/nfs; rpc.nfsd 0; killall rpc.mountd; exportfs -au; "+
			"umount /proc/fs/nfsd; rm -rf "+nfsExport)
	})
}

// locking is a program that locks bytes of a file, or all of it by flock, says so, and holds the
// lock until a file exists.
const locking = `import errno, fcntl, os, sys, time
f = open(sys.argv[1], 'r+')
try:
    if sys.argv[2] == 'all':
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, int(sys.argv[2]), int(sys.argv[3]))
    print('locked', flush=True)
except OSError as e:
    print('refused', errno.errorcode[e.errno], flush=True)
while not os.path.exists(sys.argv[4]):
    time.sleep(0.1)
`

// TestNFSForward: kernels mount NFS 4.2 over rxe and over siw from another kernel's server, through
// the forwarder. They lock files against each other, and return delegations that the server
// recalls. In the long run the forwarder is killed while one of them writes, and started again:
// clients take a minute to go on.
func TestNFSForward(t *testing.T) {
	gate.Long(t)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			p, origin := cmPeer(t, 2, transport), cmPeer(t, 3, verbs.RoCEv2)
			p.MountStorage(t)
			l := newNFSLab(t, p, "", 15*time.Minute)
			l.exportFrom(t, origin)
			start := func() *process { return l.forward(t, p, origin) }
			server := start()
			for _, client := range []*peer.Peer{p, origin} {
				if err := client.Put(l.ctx, "/lock.py", []byte(locking)); err != nil {
					t.Fatal(err)
				}
				// A server knows a client by its name.
				l.run(t, client, fmt.Sprint("hostname peer", client.ID), "modprobe -a rpcrdma nfs nfsv4", "rm -f /tmp/release",
					fmt.Sprintf("mkdir -p /mnt/nfs && mount.nfs %v:/ /mnt/nfs -o rdma,vers=4.2", nfsAddr))
			}
			out := l.run(t, p, "cd /mnt/nfs", "grep /mnt/nfs /proc/mounts",
				"dd if=/dev/urandom of=/tmp/here bs=100001 count=60 2>/dev/null", "cp /tmp/here here", dropCaches, "cmp /tmp/here here",
				"mkdir -p tree/a", "for i in $(seq 100); do echo $i >tree/a/file-with-a-long-name-$i; done", "mv tree/a tree/b",
				dropCaches, "[ $(ls tree/b | wc -l) = 100 ]", "[ $(cat tree/b/* | wc -l) = 100 ]",
				"ln -s $(seq -s / 300) link", dropCaches, "[ $(readlink link | wc -c) = 1092 ]",
				"mv here there", "echo text >small", "echo 0123456789 >locked", "sha256sum <there")
			if !strings.Contains(out, "proto=rdma") || !strings.Contains(out, "vers=4.2") {
				t.Errorf("the mount is %s", out)
			}
			digest := out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:]
			if got := l.run(t, origin, "sha256sum <"+nfsExport+"/there"); got != digest {
				t.Errorf("the server's file has digest %s; the client's %s", got, digest)
			}
			l.locks(t, p, origin)
			l.recalled(t, p, origin, "first")
			server = l.forwarderKilled(t, p, origin, server, start)
			l.recalled(t, p, origin, "second")
			l.run(t, p, "touch /tmp/release", "for i in $(seq 100); do pidof python3 >/dev/null || break; sleep 0.1; done")
			if got := l.lock(t, origin, "4 5"); got != "locked" {
				t.Errorf("bytes whose lock was released are %s", got)
			}
			for _, client := range []*peer.Peer{p, origin} {
				l.run(t, client, "cd /", "umount /mnt/nfs")
			}
			l.stop(server)
		})
	}
}

// forward starts a forwarder to the server of a peer's kernel.
func (l *nfsLab) forward(t *testing.T, p, origin *peer.Peer) *process {
	t.Helper()
	s := startProcess(t, exec.CommandContext(l.ctx, "ip", strings.Fields(fmt.Sprintf(
		"netns exec %s %s nfs serve --forward tcp:%v:2049 --counters --link tap:nfs%d,bridge=%s --addr %v/24 --mtu %d",
		p.Netns.Name, l.program, origin.Addr4(), nfsAddr.As4()[3], p.Netns.Bridge, nfsAddr, p.Netns.MTU))...))
	s.await(t, "msg=serving")
	return s
}

// lock tries to lock a part of a file for a moment, and returns what the program says.
func (l *nfsLab) lock(t *testing.T, p *peer.Peer, part string) string {
	t.Helper()
	return strings.TrimSpace(l.run(t, p, "python3 /lock.py /mnt/nfs/locked "+part+" /"))
}

// locks: a client locks bytes 2 to 5 of a file, and keeps the lock. The other cannot lock them.
func (l *nfsLab) locks(t *testing.T, holder, other *peer.Peer) {
	t.Helper()
	l.run(t, holder, "python3 /lock.py /mnt/nfs/locked 4 2 /tmp/release >/tmp/lock 2>&1 </dev/null &",
		"for i in $(seq 100); do grep -q . /tmp/lock && break; sleep 0.1; done", "grep -w locked /tmp/lock")
	for part, want := range map[string]string{"4 5": "refused EAGAIN", "all /": "refused EAGAIN", "4 6": "locked"} {
		if got := l.lock(t, other, part); got != want {
			t.Errorf("%s of the file: %s, not %s", part, got, want)
		}
	}
}

// recalled: a client has a delegation for a file that it reads. When a program of the server's
// machine writes it, the server calls the client, which returns the delegation.
func (l *nfsLab) recalled(t *testing.T, p, origin *peer.Peer, name string) {
	t.Helper()
	const returned = "awk '/DELEGRETURN:/ { n += $2 } END { print n }' /proc/self/mountstats"
	l.run(t, origin, "echo one >"+filepath.Join(nfsExport, name))
	before := l.run(t, p, "rm -f /tmp/read", "( exec 3</mnt/nfs/"+name+"; read line <&3; echo >/tmp/read; "+
		"while [ ! -e /tmp/release ]; do sleep 0.1; done ) >/dev/null 2>&1 </dev/null &",
		"for i in $(seq 100); do [ -e /tmp/read ] && break; sleep 0.1; done", returned)
	l.run(t, origin, "grep DELEG /proc/locks", "echo two >"+filepath.Join(nfsExport, name))
	after := l.run(t, p, returned, "[ $(cat /mnt/nfs/"+name+") = two ]")
	if before == after {
		t.Errorf("delegations were returned %s times before the recall, and after it", strings.TrimSpace(after))
	}
}

// forwarderKilled kills the forwarder while a client writes, and starts it again. The other client
// then still cannot lock what the first one has locked.
func (l *nfsLab) forwarderKilled(t *testing.T, p, origin *peer.Peer, server *process, start func() *process) *process {
	t.Helper()
	wrote := make(chan string, 1)
	go func() {
		out, code, err := p.Exec(l.ctx, "dd if=/dev/urandom of=/tmp/data bs=1M count=60 2>/dev/null && "+
			"dd if=/tmp/data of=/mnt/nfs/data bs=64k conv=fsync && "+dropCaches+" && cmp /tmp/data /mnt/nfs/data")
		wrote <- fmt.Sprintf("exit status %d, %v\n%s", code, err, out)
	}()
	l.run(t, origin, "while [ $(stat -c %s "+nfsExport+"/data 2>/dev/null || echo 0) -lt 10000000 ]; do sleep 0.05; done")
	_ = server.cmd.Process.Kill()
	<-server.ended
	began := time.Now()
	server = start()
	if ended := <-wrote; !strings.HasPrefix(ended, "exit status 0, <nil>") {
		t.Error(ended)
	}
	t.Logf("result: the client has written on, %v after the forwarder was started again", time.Since(began).Round(time.Second))
	l.run(t, p, "sha256sum </tmp/data >/tmp/digest", "sha256sum </mnt/nfs/data | cmp - /tmp/digest")
	if got := l.lock(t, origin, "4 5"); got != "refused EAGAIN" {
		t.Errorf("bytes that another client has locked are %s", got)
	}
	return server
}
