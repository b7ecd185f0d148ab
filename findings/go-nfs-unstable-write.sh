#!/bin/sh
# Versions: github.com/willscott/go-nfs v0.0.4, github.com/willscott/go-nfs-client
# v0.0.0-20251022144359-801f10d98886, github.com/go-git/go-billy/v5 v5.6.2, Go 1.26.
#
# Guess: an NFS server answers a WRITE that asks for UNSTABLE with UNSTABLE, and stores the data for
# good at COMMIT. One that answers FILE_SYNC has stored it for good (RFC 1813 §3.3.7).
#
# Seen: go-nfs answers each WRITE with FILE_SYNC, so that clients never send COMMIT, and it never
# syncs. A file system can offer Sync, and it is not called:
#
#   WRITE of 6 bytes, UNSTABLE: answered 2 (0 UNSTABLE, 1 DATA_SYNC, 2 FILE_SYNC)
#   Sync of the file: 0 calls
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'EOF'
module finding

go 1.25

require (
	github.com/go-git/go-billy/v5 v5.6.2
	github.com/willscott/go-nfs v0.0.4
	github.com/willscott/go-nfs-client v0.0.0-20251022144359-801f10d98886
)
EOF
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/memfs"
	nfs "github.com/willscott/go-nfs"
	client "github.com/willscott/go-nfs-client/nfs"
	"github.com/willscott/go-nfs-client/nfs/rpc"
	"github.com/willscott/go-nfs-client/nfs/xdr"
	nfshelper "github.com/willscott/go-nfs/helpers"
)

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

var syncs int

// synced is a file system whose files have Sync.
type synced struct{ billy.Filesystem }

type file struct{ billy.File }

func (f file) Sync() error { syncs++; return nil }

func (s synced) OpenFile(name string, flags int, mode os.FileMode) (billy.File, error) {
	f, err := s.Filesystem.OpenFile(name, flags, mode)
	return file{f}, err
}

func (s synced) Create(name string) (billy.File, error) {
	f, err := s.Filesystem.Create(name)
	return file{f}, err
}

// Attributes are accepted and ignored.
func (s synced) Chmod(string, os.FileMode) error            { return nil }
func (s synced) Lchown(string, int, int) error              { return nil }
func (s synced) Chown(string, int, int) error               { return nil }
func (s synced) Chtimes(string, time.Time, time.Time) error { return nil }

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	handler := nfshelper.NewCachingHandler(nfshelper.NewNullAuthHandler(synced{memfs.New()}), 100)
	go func() { check(nfs.Serve(l, handler)) }()
	c, err := rpc.DialTCP(l.Addr().Network(), l.Addr().(*net.TCPAddr).String(), false)
	check(err)
	var mount client.Mount
	mount.Client = c
	target, err := mount.Mount("/", rpc.AuthNull)
	check(err)
	_, err = target.Create("f", 0o644)
	check(err)
	_, fh, err := target.Lookup("/f")
	check(err)
	type write struct {
		rpc.Header
		FH     []byte
		Offset uint64
		Count  uint32
		How    uint32
		Data   []byte
	}
	reply, err := c.Call(&write{
		Header: rpc.Header{Rpcvers: 2, Prog: 100003, Vers: 3, Proc: 7, Cred: rpc.AuthNull, Verf: rpc.AuthNull},
		FH:     fh, Count: 6, Data: []byte("stored"),
	})
	check(err)
	var result struct {
		Status     uint32
		Before     uint32
		PreOp      [24]byte
		After      uint32
		Attributes [84]byte
		Count, How uint32
	}
	check(xdr.Read(reply, &result.Status))
	check(xdr.Read(reply, &result.Before))
	if result.Before == 1 {
		check(xdr.Read(reply, &result.PreOp))
	}
	check(xdr.Read(reply, &result.After))
	if result.After == 1 {
		check(xdr.Read(reply, &result.Attributes))
	}
	check(xdr.Read(reply, &result.Count))
	check(xdr.Read(reply, &result.How))
	fmt.Printf("WRITE of %d bytes, UNSTABLE: answered %d (0 UNSTABLE, 1 DATA_SYNC, 2 FILE_SYNC)\n", result.Count, result.How)
	fmt.Printf("Sync of the file: %d calls\n", syncs)
}
EOF
go mod tidy >log 2>&1 || { cat log >&2; exit 2; }
go run . >seen
cat seen
cat >expected <<'EOF'
WRITE of 6 bytes, UNSTABLE: answered 2 (0 UNSTABLE, 1 DATA_SYNC, 2 FILE_SYNC)
Sync of the file: 0 calls
EOF
cmp seen expected
