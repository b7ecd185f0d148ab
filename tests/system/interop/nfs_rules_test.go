//go:build linux

package interop

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

//go:embed testdata/nfsrules.py
var nfsRules []byte

// nfsDifference is a difference between what nfsrules.py says of two file systems: regular
// expressions of the names of lines, and the reason.
type nfsDifference struct{ names, reason string }

// ofNFS are the differences of Linux 6.1's client and server from a local file system, whatever the
// version.
var ofNFS = []nfsDifference{
	{`open O_TMPFILE`, "NFS creates no file without a name"},
	{`(list|symlink) in a removed directory`, "handles of removed files are stale"},
	{`renameat2 2`, "RENAME does not exchange files"},
	{`(mode .* after|time) chown of nothing`, "the client makes no call that would set nothing"},
	{`time truncate to the same`, "the client makes no call for a size that the file has"},
	{`truncate a file with set-group-ID`, "Linux's server takes away set-user-ID only"},
	{`(links of|listing with) an unlinked file|rmdir with an unlinked open file`,
		"the client renames a file that is open instead of removing it"},
	{`collapse|zero|insert|fallocate that keeps the size`, "NFS does not have them"},
	{`[gs]etxattr (trusted|security).x|listxattr`, "NFS has no attributes of the system"},
}

// ofNFS3 are those of version 3 beside ofNFS.
var ofNFS3 = []nfsDifference{
	{`times of (1|2106|before 1970|after 2106|a directory)|times that were set after a write`,
		"seconds have 32 bits and no sign, and Linux's client drops the nanoseconds of the first and last one"},
	{`seek (data|hole)`, "version 3 has no SEEK"},
	{`fallocate|punch.*`, "version 3 has no ALLOCATE and DEALLOCATE"},
	{`(read|stat of) what the other has removed`, "version 3 has no open files"},
	{`bytes that the other has locked|flock of what the other has`, "mounted with nolock"},
	{`[gs]etxattr user.x`, "version 3 has no extended attributes"},
}

// ofNFS4 are those of version 4.2.
var ofNFS4 = []nfsDifference{
	{`truncat(ing|ed) for reading`, "OPEN for reading does not truncate"},
	{`time O_TRUNC of an empty file`, "the client makes no call for a size that the file has"},
	{`stat of what the other has removed`, "both are one mount here, where the client renames a file that is open"},
	{`[gs]etxattr system.posix_acl_access`, "version 4 has ACLs of another kind"},
}

// ofServe are the differences of softrnic nfs serve from Linux's server of version 3.
var ofServe = []nfsDifference{
	{`(mknod of|mode of|mknod over) (character|block)`, "devices would be those of the server's machine"},
	{`(list|read in|create in|mkdir in|unlink in|access of) (closed|secret|blind|nosearch|group)|owner of a new file|` +
		`foreign file of mode .*|(chmod|chown|utime) of a foreign file|chown of an own file|chgrp to a foreign group|` +
		`write to a file with set-user-ID|set-group-ID of a foreign group|an own file of mode 0|execute mode 711`,
		"every user has the rights of the server's user, who is root here"},
	{`getxattr system.posix_acl_access`, "there is no NFSACL"},
}

// nfsLines are the results that nfsrules.py prints, by their names.
type nfsLines map[string]string

// rules runs parts of nfsrules.py in a directory, or all of them. other is the same directory by
// another mount.
func (l *nfsLab) rules(t *testing.T, p *peer.Peer, at, other string, parts ...string) nfsLines {
	t.Helper()
	if err := p.Put(l.ctx, "/rules.py", nfsRules); err != nil {
		t.Fatal(err)
	}
	out := l.run(t, p, "rm -rf "+at+"/rules", "mkdir "+at+"/rules",
		fmt.Sprintf("python3 /rules.py %s/rules %s/rules %s", at, other, strings.Join(parts, " ")), "rm -rf "+at+"/rules")
	lines := nfsLines{}
	for line := range strings.Lines(out) {
		name, result, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok { // the time that a part has taken
			continue
		}
		if _, twice := lines[name]; twice || strings.HasPrefix(name, "BROKEN") {
			t.Errorf("%s: %s", at, line)
		}
		lines[name] = result
	}
	return lines
}

// compare compares results with those of another file system. Each known difference must be there
// if all parts have run.
func (got nfsLines) compare(t *testing.T, what string, want nfsLines, whole bool, known ...nfsDifference) {
	t.Helper()
	used := map[string]bool{}
	all := maps.Clone(want)
	maps.Copy(all, got)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if got[name] == want[name] {
			continue
		}
		i := slices.IndexFunc(known, func(d nfsDifference) bool {
			return regexp.MustCompile("^(" + d.names + ")$").MatchString(name)
		})
		if i < 0 {
			t.Errorf("%s: %q, not %q: %s", what, got[name], want[name], name)
			continue
		}
		used[known[i].names] = true
	}
	for _, d := range known {
		if whole && !used[d.names] {
			t.Errorf("%s: there is no difference in %q any more", what, d.names)
		}
	}
}

// ext4 mounts an empty file system of a disk in memory.
func (l *nfsLab) ext4(t *testing.T, p *peer.Peer, at string) {
	t.Helper()
	p.MountStorage(t)
	l.run(t, p, "grep -q configfs /proc/mounts || mount -t configfs none /sys/kernel/config", "modprobe null_blk nr_devices=0",
		"mkdir /sys/kernel/config/nullb/nullb0", "cd /sys/kernel/config/nullb/nullb0", "echo 256 >size", "echo 1 >memory_backed",
		"echo 1 >discard", "echo 1 >power", "mkfs.ext4 -q -b 4096 -I 256 /dev/nullb0", "mkdir -p "+at, "mount -t ext4 /dev/nullb0 "+at)
	t.Cleanup(func() {
		_, _, _ = p.Exec(context.Background(), "cd /; umount "+at+"; rmdir /sys/kernel/config/nullb/nullb0 "+at)
	})
}

// mountTwice is the commands that mount an export at a directory, and once more beside it with
// caches of its own, as another client would.
func mountTwice(export, at, options string) string {
	return fmt.Sprintf("mkdir -p %[2]s %[2]s-b\nmount.nfs %[1]s %[2]s -o %[3]s\nmount.nfs %[1]s %[2]s-b -o %[3]s,nosharecache",
		export, at, options)
}

// quickParts are the parts of nfsrules.py that take little time, without those about rights and
// about sizes.
var quickParts = strings.Fields("open directories renames links nodes modes touched stamps nameless clients locks maps limits")

// someRules compares some parts of nfsrules.py with a local file system.
func (l *nfsLab) someRules(t *testing.T) {
	t.Helper()
	l.ext4(t, l.peer, "/mnt/local")
	began := time.Now()
	parts := append([]string{"sizes", "ranges"}, quickParts...)
	local := l.rules(t, l.peer, "/mnt/local", "/mnt/local", parts...)
	l.run(t, l.peer, mountTwice(fmt.Sprintf("%v:/", nfsAddr), "/mnt/nfs", "rdma,vers=3,nolock"))
	got := l.rules(t, l.peer, "/mnt/nfs", "/mnt/nfs-b", parts...)
	l.run(t, l.peer, "umount /mnt/nfs-b", "umount /mnt/nfs")
	t.Logf("%d results of both in %v", len(local), time.Since(began).Round(time.Second))
	got.compare(t, "softrnic nfs serve", local, false, slices.Concat(ofNFS, ofNFS3, ofServe)...)
}

// TestNFSRules: hundreds of operations of files have the same results over NFS as on a local file
// system. What NFS itself cannot is known from Linux's server: softrnic nfs serve differs from it
// only by its table, and with --forward not at all.
func TestNFSRules(t *testing.T) {
	gate.Long(t)
	p, origin := cmPeer(t, 2, verbs.RoCEv2), cmPeer(t, 3, verbs.RoCEv2)
	dir, err := os.MkdirTemp("/dev/shm", "nfs") // where fsync takes no time
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l := newNFSLab(t, p, dir, 40*time.Minute)
	l.ext4(t, p, "/mnt/local")
	l.ext4(t, origin, nfsExport)
	l.exportFrom(t, origin)
	// mount.nfs needs protocols for such options.
	l.run(t, p, nfsModules, "modprobe nfsv4", "echo tcp 6 TCP >/etc/protocols")
	defer l.run(t, p, "rm /etc/protocols")
	over := func(t *testing.T, export, options string, parts ...string) nfsLines {
		t.Helper()
		l.run(t, p, mountTwice(export, "/mnt/nfs", options))
		defer l.run(t, p, "umount /mnt/nfs-b", "umount /mnt/nfs")
		other := "/mnt/nfs-b"
		if strings.Contains(options, "vers=4.2") { // both mounts are one client, and its delegations are not recalled for itself
			other = "/mnt/nfs"
		}
		began := time.Now()
		lines := l.rules(t, p, "/mnt/nfs", other, parts...)
		t.Logf("%d lines of %s with %s in %v", len(lines), export, options, time.Since(began).Round(time.Second))
		return lines
	}
	local := l.rules(t, p, "/mnt/local", "/mnt/local")
	linux3 := over(t, fmt.Sprintf("%v:%s", origin.Addr4(), nfsExport), "proto=tcp,vers=3,nolock,port=2049,mountport=20048,mountproto=tcp")
	linux4 := over(t, fmt.Sprintf("%v:/", origin.Addr4()), "proto=tcp,vers=4.2")
	if gate.Suite() == "bookworm" { // whose kernel the tables describe
		linux3.compare(t, "Linux's NFS 3", local, true, slices.Concat(ofNFS, ofNFS3)...)
		linux4.compare(t, "Linux's NFS 4.2", local, true, slices.Concat(ofNFS, ofNFS4)...)
	}
	defer useTransport(t, p, verbs.RoCEv2)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		useTransport(t, p, transport)
		server := l.serve(nfsAddr, "")
		over(t, fmt.Sprintf("%v:/", nfsAddr), "rdma,vers=3,nolock").compare(t, transport.String(), linux3, true, ofServe...)
		l.stop(server)
		server = l.forward(t, p, origin)
		over(t, fmt.Sprintf("%v:/", nfsAddr), "rdma,vers=4.2").compare(t, transport.String()+", forwarded", linux4, true)
		l.stop(server)
		t.Logf("result: %v: %d results as Linux's server gives them, and %d through the forwarder", transport, len(linux3), len(linux4))
	}
	// In memory there are no holes, so large sizes are refused.
	inMemory := *l
	inMemory.dir = ""
	server := inMemory.serve(nfsAddr, "--memory 100000000")
	got := over(t, fmt.Sprintf("%v:/", nfsAddr), "rdma,vers=3,nolock", quickParts...)
	l.stop(server)
	maps.DeleteFunc(linux3, func(name, _ string) bool { return got[name] == "" })
	got.compare(t, "in memory", linux3, false, ofServe...)
}
