//go:build linux && amd64

package dropin

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// fioDepth is the number of blocks of each side.
const fioDepth = 16

// TestFio runs fio's RDMA engine: RDMA WRITE, RDMA READ, and SEND. In the long run it moves 1 GiB,
// on each link and over both transports.
//
// fio itself checks only the data of SENDs, at the receiver. For the others, the blocks of both
// sides are files that fio maps (--iomem), and are compared here.
//
// fio fails at the first SEND without a receive request, since its rnr_retry is 0, and posts
// receive requests again in its own time. So the server has one for each block from the start.
func TestFio(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/fio", "fio")
	build(t)
	size, over, few := uint64(16<<20), links[:1], true
	if os.Getenv("SOFTRNIC_LONG") != "" {
		size, over, few = 1<<30, links, false
	}
	for i, verb := range []string{"write", "read", "send"} {
		p := cmProgram{bytes: size, roceOnly: few}
		media := mediaOf(over, &p)
		for j, m := range media {
			if !turn(i, j, len(media)) {
				continue
			}
			t.Run(fmt.Sprintf("%s %s %s", m.link, m.transport, verb), func(t *testing.T) {
				programs.Ran(t, fmt.Sprintf("fio --ioengine=rdma --verb=%s --size=%d", verb, size),
					fmt.Sprintf("%s (%s)", m.name(), m.called))
				p := p
				job := fmt.Sprintf("fio --name=%s --ioengine=rdma --thread=1 --port=18515 --bs=%d --size=%d", verb, size/64, size)
				p.server, p.client = job+" --rw=read", fmt.Sprintf("%s --rw=write --iodepth=%d --hostname=SERVER --verb=%s", job, fioDepth,
					verb)
				if verb == "send" {
					p.server, p.client = p.server+" --iodepth=64 --verify=crc32c", p.client+" --verify=crc32c --do_verify=0"
					p.runOn(t, m)
					return
				}
				server, client := newBlocks(t, size/64), newBlocks(t, size/64)
				p.server += fmt.Sprintf(" --iodepth=%d --iomem=mmapshared:%s", fioDepth, server.Name())
				p.client += " --scramble_buffers=0 --iomem=mmapshared:" + client.Name()
				p.runOn(t, m)
				from, to := client, server
				if verb == "read" {
					from, to = server, client
				}
				from.carriedTo(t, to)
			})
		}
	}
}

// blocks is the memory of one side of fio: a file, which fio removes.
type blocks struct {
	*os.File
	size uint64
	were [][sha256.Size]byte
}

// newBlocks fills blocks with random data.
func newBlocks(t *testing.T, size uint64) *blocks {
	t.Helper()
	f, err := os.Create(filepath.Join(shared(t), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Chmod(0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(f, rand.Reader, int64(size*fioDepth)); err != nil {
		t.Fatal(err)
	}
	b := &blocks{File: f, size: size}
	b.were = b.sums(t)
	return b
}

// sums returns the checksums of the blocks.
func (b *blocks) sums(t *testing.T) (list [][sha256.Size]byte) {
	t.Helper()
	block := make([]byte, b.size)
	for i := range uint64(fioDepth) {
		if _, err := b.ReadAt(block, int64(i*b.size)); err != nil {
			t.Fatal(err)
		}
		list = append(list, sha256.Sum256(block))
	}
	return list
}

// carriedTo checks that each block of to is one of b's, or has not been written. fio selects the
// remote block of each operation at random, and a few are never used.
func (b *blocks) carriedTo(t *testing.T, to *blocks) {
	t.Helper()
	is := map[[sha256.Size]byte]bool{}
	for _, sum := range b.sums(t) {
		is[sum] = true
	}
	if len(is) < fioDepth/2 {
		t.Errorf("the %d blocks that were sent have %d contents", fioDepth, len(is))
	}
	carried := map[[sha256.Size]byte]bool{}
	for i, sum := range to.sums(t) {
		switch {
		case is[sum]:
			carried[sum] = true
		case sum != to.were[i]:
			t.Errorf("block %d equals none of the sent ones", i)
		}
	}
	if len(carried) < fioDepth/2 {
		t.Errorf("%d different blocks have arrived, want %d at least", len(carried), fioDepth/2)
	}
}
