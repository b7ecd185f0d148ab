//go:build linux && amd64

package interop

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// rcopy copies a file from here to the peer and back with rcopy of rdmacm-utils on each side, here
// on the drop-in libraries. The server maps memory that the client writes to.
func (l *dropinLab) rcopy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	dir := forNobody(t)
	programs.Ran(t, "rcopy FILE SERVER", l.against())
	want, err := os.ReadFile(filepath.Join(l.libs, "librdmacm.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	here := filepath.Join(dir, "data")
	if err := os.WriteFile(here, want, 0o644); err != nil {
		t.Fatal(err)
	}

	serving, err := l.peer.Start("rcopy")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serving.Kill() }()
	l.peer.Run(t, untilListens("rcopy"))
	client := startProcess(t, l.dropin(ctx, t, fmt.Sprintf("rcopy %s %v:/tmp/copied", here, l.peer.Addr4()), filepath.Join(dir, "client")))
	if err := <-client.ended; err != nil {
		t.Fatalf("the client: %v\n%s%s\nthe server:\n%s", err, client.stdout.String(), client.stderr.String(), serving.Output())
	}

	server := startProcess(t, l.dropin(ctx, t, "rcopy", filepath.Join(dir, "server")))
	defer func() { _ = server.cmd.Process.Kill() }()
	server.await(t, "rdma_cm listens")
	back := filepath.Join(dir, "back")
	if out, code, err := l.peer.Exec(ctx, fmt.Sprintf("rcopy /tmp/copied %v:%s", dropinAddr, back)); err != nil || code != 0 {
		t.Fatalf("rcopy in the peer: exit status %d, %v\n%s", code, err, out)
	}
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d came back, or other ones: %v", len(got), len(want), err)
	}
	c, err := programs.Counted(filepath.Join(dir, "client"))
	if err != nil {
		t.Fatal(err)
	}
	if sum := 4*c["port_xmit_data"] + c["iwarp_xmit_bytes"]; sum < uint64(len(want)) {
		t.Errorf("the client's device has sent %d bytes, want %d at least: %v", sum, len(want), c)
	}
}

// rcopyHeader is struct msg_hdr of rcopy, whose fields have the machine's byte order.
type rcopyHeader struct {
	Version, Command uint8
	Len              uint16 // of the header and the following data
	Data             uint32
	ID               uint64
}

const (
	rcopyLen   = 16 // of a header
	rcopyOpen  = 1  // Data is the mode of the file; its path and a zero follow
	rcopyClose = 2
	rcopyWrite = 3 // the length of the file follows, in 8 bytes, and later the file
	rcopyResp  = 0x80
)

// rcopySend is rcopy's client: it copies data to a file on the other side.
func rcopySend(c net.Conn, path string, data []byte) error {
	request := func(command uint8, mode uint32, more, then []byte) error {
		h := rcopyHeader{Command: command, Len: uint16(rcopyLen + len(more)), Data: mode, ID: uint64(command)}
		var b bytes.Buffer
		_ = binary.Write(&b, binary.LittleEndian, h)
		b.Write(more)
		if _, err := c.Write(b.Bytes()); err != nil {
			return err
		}
		if _, err := c.Write(then); err != nil {
			return err
		}
		var got rcopyHeader
		if err := binary.Read(c, binary.LittleEndian, &got); err != nil {
			return err
		}
		if want := (rcopyHeader{Command: command | rcopyResp, Len: rcopyLen, ID: h.ID}); got != want {
			return fmt.Errorf("command %d: answer %+v, want %+v", command, got, want)
		}
		return nil
	}
	if err := request(rcopyOpen, 0o644, append([]byte(path), 0), nil); err != nil {
		return err
	}
	if err := request(rcopyWrite, 0, binary.LittleEndian.AppendUint64(nil, uint64(len(data))), data); err != nil {
		return err
	}
	return request(rcopyClose, 0, nil, nil)
}

// rcopyReceive is rcopy's server, for one file; it returns the name and the content of the file.
func rcopyReceive(c net.Conn) (path string, data []byte, err error) {
	for _, want := range []uint8{rcopyOpen, rcopyWrite, rcopyClose} {
		var h rcopyHeader
		if err := binary.Read(c, binary.LittleEndian, &h); err != nil {
			return "", nil, err
		}
		if h.Version != 0 || h.Command != want || h.Len < rcopyLen {
			return "", nil, fmt.Errorf("%+v, want command %d", h, want)
		}
		more := make([]byte, h.Len-rcopyLen)
		if _, err := io.ReadFull(c, more); err != nil {
			return "", nil, err
		}
		switch h.Command {
		case rcopyOpen:
			path = string(bytes.TrimRight(more, "\x00"))
		case rcopyWrite:
			if len(more) != 8 || binary.LittleEndian.Uint64(more) > 64<<20 {
				return "", nil, fmt.Errorf("file length %x", more)
			}
			data = make([]byte, binary.LittleEndian.Uint64(more))
			if _, err := io.ReadFull(c, data); err != nil {
				return "", nil, err
			}
		}
		if err := binary.Write(c, binary.LittleEndian, rcopyHeader{Command: h.Command | rcopyResp, Len: rcopyLen, ID: h.ID}); err != nil {
			return "", nil, err
		}
	}
	return path, data, nil
}

func TestRcopy(t *testing.T) {
	gate.System(t)
	testRcopy(t, verbs.RoCEv2)
}
func TestIWARPRcopy(t *testing.T) {
	gate.System(t)
	testRcopy(t, verbs.IWARP)
}

// testRcopy: a file goes to the kernel's rcopy, in both roles, and comes back unchanged.
func testRcopy(t *testing.T, transport verbs.Transport) {
	const port, file = 7427, "/tmp/rcopied"
	lab := openCM(t, transport)
	p := cmPair{lab, softrnicAddr4, lab.peer.Addr4()}
	cfg := &rsocket.Config{Transport: transport}
	want := make([]byte, 1<<20+4711)
	rand.NewChaCha8([32]byte{1}).Read(want)
	p.endlessKernelServes(t, "rcopy", func(ctx context.Context) error {
		c, err := rsocket.Dial(ctx, p.dev, fmt.Sprintf("%v:%d", p.there, port), cfg)
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { c.Close() })()
		return errors.Join(rcopySend(c, file, want), c.Close())
	})
	l, err := rsocket.Listen(p.dev, fmt.Sprintf(":%d", port), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p.kernelConnects(t, fmt.Sprintf("rcopy %s %v:back", file, p.here), func(ctx context.Context) error {
		c, err := l.AcceptContext(ctx)
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { c.Close() })()
		path, got, err := rcopyReceive(c)
		if err == nil && (path != "back" || !bytes.Equal(got, want)) {
			err = fmt.Errorf("%q, of %d bytes, came back, want \"back\" of %d, the same", path, len(got), len(want))
		}
		return errors.Join(err, c.Close())
	})
}
