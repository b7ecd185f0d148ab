package nfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
)

// TestMain runs the tests as clitest does.
func TestMain(m *testing.M) { clitest.Main(m) }

// program is the command line with this package's command alone.
var program = clitest.Program(func() any {
	return new(struct {
		Nfs Command `cmd:""`
	})
})

// machine is a client's host on a network.
type machine struct {
	host *netstack.Host
	dev  *verbs.Device
}

func newMachine(t *testing.T, lan *pipe.Switch, addr string) machine {
	t.Helper()
	host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
	ok(t, err)
	dev, err := rdmatransport.Open(host, nil)
	ok(t, err)
	t.Cleanup(func() {
		dev.Close()
		host.Close()
	})
	return machine{host, dev}
}

// tcp returns a client over TCP.
func (m machine) tcp(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := m.host.DialStream(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort(addr))
	ok(t, err)
	t.Cleanup(func() { conn.Close() })
	return overStream(conn)
}

func overStream(conn net.Conn) *client {
	in := &recordReader{r: conn, limit: maxShortCall}
	return &client{do: func(call []byte) ([]byte, error) {
		// In two fragments.
		record := binary.BigEndian.AppendUint32(nil, 8)
		record = append(record, call[:8]...)
		record = binary.BigEndian.AppendUint32(record, lastFragment|uint32(len(call)-8))
		if _, err := conn.Write(append(record, call[8:]...)); err != nil {
			return nil, err
		}
		return in.read()
	}}
}

// TestServe: a client finds the ports, mounts over TCP, and then reads and writes over RDMA.
func TestServe(t *testing.T) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			t.Parallel()
			lan, dir := new(pipe.Switch), t.TempDir()
			data := bytes.Repeat([]byte("0123456789abcde\n"), 70_000) // more than a READ
			ok(t, os.WriteFile(filepath.Join(dir, "file"), data, 0o644))
			s := program.Start(t, lan, "nfs serve "+dir+" --addr 10.0.0.1/24 --metrics 127.0.0.1:0")
			s.Await(t, &s.Err, "msg=serving")
			m := newMachine(t, lan, "10.0.0.2/24")

			ports := m.tcp(t, "10.0.0.1:111")
			ports.do = withVersion(ports.do, portmapVersion)
			if port := ports.call(t, programPortmap, portmapGetport, programMount, 3, protocolTCP, 0).uint32(); port != defaultMountTCP {
				t.Errorf("MOUNT is on port %d", port)
			}
			root := m.tcp(t, "10.0.0.1:20048").mount(t, dir)
			rdma, err := rpcrdma.Dial(t.Context(), m.dev, "10.0.0.1:20049", &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS})
			ok(t, err)
			defer rdma.Close()
			c := over(rdma)
			file := c.lookup(t, root, "file")
			first, _ := c.read(t, file, 0, 1<<21)
			rest, eof := c.read(t, file, uint64(len(first)), 1<<20)
			if len(first) != maxTransfer || !bytes.Equal(append(first, rest...), data) || !eof {
				t.Errorf("%d and %d bytes of %d", len(first), len(rest), len(data))
			}
			c.write(t, c.create(t, root, "new"), 0, data[:maxTransfer], 2)
			if b, err := os.ReadFile(filepath.Join(dir, "new")); err != nil || !bytes.Equal(b, data[:maxTransfer]) {
				t.Errorf("%d bytes were written, %v", len(b), err)
			}
			names := c.list(t, root, true, 8192)
			slices.Sort(names)
			if strings.Join(names, " ") != ". .. file new" {
				t.Errorf("%q", names)
			}
			url := regexp.MustCompile(`url=(\S+)`).FindStringSubmatch(s.Err.String())[1]
			r, err := http.Get(url)
			ok(t, err)
			defer r.Body.Close()
			text, err := io.ReadAll(r.Body)
			ok(t, err)
			for _, line := range []string{"softrnic_nfs_connections 1", "softrnic_nfs_calls_total 6", "softrnic_nfs_errors_total 0",
				`softrnic_nfs_bytes_total{by="read",direction="received"} 1.048576e+06`} {
				if !strings.Contains(string(text), line+"\n") {
					t.Errorf("no %q in the metrics", line)
				}
			}
			s.Stop()
			if code := s.Wait(t); code != cli.ExitOK {
				t.Errorf("exit code %d: %s", code, &s.Err)
			}
		})
	}
}

// withVersion changes the version in calls.
func withVersion(do func([]byte) ([]byte, error), version uint32) func([]byte) ([]byte, error) {
	return func(call []byte) ([]byte, error) {
		binary.BigEndian.PutUint32(call[16:], version)
		return do(call)
	}
}

// TestMountPort: over TCP there is MOUNT, and no NFS. Too long a record ends the connection.
func TestMountPort(t *testing.T) {
	lan := new(pipe.Switch)
	s := program.Start(t, lan, "nfs serve --memory 1000000 --read-only --no-portmap --addr 10.0.0.1/24")
	s.Await(t, &s.Err, "msg=serving")
	m := newMachine(t, lan, "10.0.0.2/24")
	c := m.tcp(t, "10.0.0.1:20048")
	root := c.mount(t, "/")
	reply, err := c.do(callOf(5, programNFS, version3, procGetattr, root))
	if outcome, _ := result(reply); err != nil || outcome != acceptProgUnavail {
		t.Errorf("NFS is answered by %x, %v", reply, err)
	}
	if reply, err := c.do(callOf(6, programMount, version3, 1, make([]byte, maxShortCall))); err == nil {
		t.Errorf("a long call is answered by %x", reply)
	}
	if _, err := m.host.DialStream(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:111")); err == nil {
		t.Error("port 111 is open")
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	for args, want := range map[string]string{
		"nfs serve":                                  "one of a DIRECTORY, --memory and --forward",
		"nfs serve " + dir + " --memory 5":           "one of a DIRECTORY, --memory and --forward",
		"nfs serve " + dir + " --forward tcp:a:2049": "one of a DIRECTORY, --memory and --forward",
		"nfs serve --forward a:2049":                 "must be tcp:HOST:PORT",
		"nfs serve --forward tcp:a":                  "must be tcp:HOST:PORT",
		"nfs serve --forward tcp:a:1 --read-only":    "--read-only",
		"nfs serve --forward tcp:a:1 --mount-port 5": "--mount-port",
		"nfs serve --memory 5 --no-portmap --addr 10.0.0.1/24 --fault rdma_listen=EADDRINUSE": "address already in use (an injected fault)",
		"nfs serve --memory=-5":                                  "--memory -5",
		"nfs serve " + dir + "/nothing":                          "nothing",
		"nfs serve " + dir + " --port 7 --mount-port 7":          "is also --mount-port",
		"nfs serve " + dir + " --addr 10.0.0.1/24 --link kernel": "10.0.0.1",
	} {
		if code, _, stderr := program.Run(context.Background(), new(pipe.Switch), strings.Fields(args)...); code == cli.ExitOK ||
			!strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
}
