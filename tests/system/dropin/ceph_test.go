//go:build linux && amd64

package dropin

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// Addresses of the daemons and of the commands.
const (
	cephMon    = "127.18.10.1"
	cephMgr    = "127.18.10.2"
	cephOSD    = "127.18.10.3"
	cephClient = "127.18.10.4"
)

// cephConf is for one monitor, one manager and one OSD in memory, which communicate by RDMA only.
// Ceph's messenger connects by rdma_cm, or exchanges the QPs' parameters over TCP. All other data
// passes through the QP. It has fewer buffers than by default, where each process registers 4 GiB.
const cephConf = `[global]
fsid = 6b1a7b0e-6f0c-4f55-8a7e-2f6a60f3c1de
mon host = [v2:` + cephMon + `:3300]
auth cluster required = none
auth service required = none
auth client required = none
ms type = async+rdma
ms async rdma device name = DEVICE
ms async rdma gid idx = GID
ms async rdma type = TYPE
ms async rdma cm = CM
ms async rdma receive buffers = 2048
ms async rdma receive queue len = 512
ms async rdma send buffers = 512
ms bind msgr1 = false
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 8589934592
mon data avail crit = 0
run dir = DIR
admin socket = DIR/$name.$pid.asok
log file = DIR/$name.log
pid file = DIR/$name.pid
crash dir = DIR
mon data = DIR/mon
mgr data = DIR/mgr
osd data = DIR/osd
`

// ceph is a cluster of one of each daemon.
type ceph struct {
	ctx       context.Context
	dir       string
	transport string // value of SOFTRNIC_TRANSPORT
}

// TestCeph runs a monitor, a manager and an OSD of Ceph, and clients, on the drop-in libraries,
// each with its own address, over RDMA. Objects come back unchanged, rados bench writes and reads,
// and the OSD's messenger counts the bytes over RDMA.
func TestCeph(t *testing.T) {
	gate.Long(t)
	for _, name := range []string{"ceph-mon", "ceph-mgr", "ceph-osd", "rados"} {
		needs(t, "/usr/bin/"+name, "ceph-mon, ceph-mgr, ceph-osd and ceph-common")
	}
	for _, m := range []struct{ name, transport, device, gid, kind, cm string }{
		{"RoCEv2", "roce", "softrnic0", "1", "ib", "false"},
		{"iWARP", "iwarp", "softrnic0_iw", "0", "iwarp", "true"},
	} {
		t.Run(m.name, func(t *testing.T) {
			c := &ceph{dir: shared(t), transport: m.transport}
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			t.Cleanup(cancel)
			c.ctx = ctx
			c.test(t, "sockets ("+m.name+")", strings.NewReplacer("DIR", c.dir, "DEVICE", m.device, "GID", m.gid, "TYPE", m.kind, "CM",
				m.cm).Replace(cephConf))
		})
	}
}

// test sets the cluster up with a configuration, and uses it.
func (c *ceph) test(t *testing.T, over, conf string) {
	t.Helper()
	path := func(name string) string { return filepath.Join(c.dir, name) }
	const file = 20_000_001
	data := make([]byte, file)
	_, _ = rand.Read(data) // never fails
	if err := os.WriteFile(path("data"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path("ceph.conf"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"mon", "mgr", "osd"} {
		if err := os.Mkdir(path(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path(name), nobody, nobody); os.Getuid() == 0 && err != nil {
			t.Fatal(err)
		}
	}

	const fsid = "6b1a7b0e-6f0c-4f55-8a7e-2f6a60f3c1de"
	c.do(t, cephMon, "monmaptool", "--create", "--addv", "a", "[v2:"+cephMon+":3300]", "--fsid", fsid, path("monmap"))
	c.do(t, cephMon, "ceph-mon", "--mkfs", "-i", "a", "--monmap", path("monmap"))
	c.daemon(t, cephMon, "ceph-mon -f -i a")
	c.daemon(t, cephMgr, "ceph-mgr -f -i x --public-addr "+cephMgr)
	const uuid = "0d4a2a63-1d0e-4d5c-9f3c-0a4f3f8d1b77"
	c.do(t, cephClient, "ceph", "osd", "new", uuid)
	c.do(t, cephOSD, "ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", uuid)
	c.daemon(t, cephOSD, "ceph-osd -f -i 0 --public-addr "+cephOSD)
	c.do(t, cephClient, "ceph", "osd", "pool", "create", "bench", "8")

	for _, p := range []string{"ceph-mon -f", "ceph-mgr -f", "ceph-osd -f, objectstore memstore"} {
		programs.Ran(t, p+", ms_type async+rdma", over)
	}
	t.Run("put and get", func(t *testing.T) {
		programs.Ran(t, "rados put, get", over)
		c.do(t, cephClient, "rados", "-p", "bench", "put", "object", path("data"))
		c.do(t, cephClient, "rados", "-p", "bench", "get", "object", path("back"))
		if back, err := os.ReadFile(path("back")); err != nil || !bytes.Equal(back, data) {
			t.Errorf("%d bytes are read (%v), which differ from the %d that were written", len(back), err, len(data))
		}
	})
	for _, size := range []int{4096, 65536, 4 << 20} {
		t.Run(fmt.Sprint("bench ", size), func(t *testing.T) {
			programs.Ran(t, fmt.Sprintf("rados bench 5 write, seq -b %d -t 8", size), over)
			name := fmt.Sprint("run", size)
			bench := strings.Fields("rados -p bench bench 5 write --no-cleanup -t 8 --run-name " + name + " -b " + fmt.Sprint(size))
			write := c.do(t, cephClient, bench...)
			read := c.do(t, cephClient, strings.Fields("rados -p bench bench 5 seq -t 8 --run-name "+name)...)
			for what, said := range map[string]string{"write": write, "read": read} {
				if _, rate, ok := strings.Cut(said, "Bandwidth (MB/sec):"); !ok {
					t.Errorf("rados bench does not print its bandwidth:\n%s", said)
				} else {
					rate, _, _ = strings.Cut(strings.TrimSpace(rate), "\n")
					t.Logf("result: rados bench over %s, %s of %d bytes: %s MB/s", c.transport, what, size, rate)
				}
			}
		})
	}

	sent, received, errors := c.messenger(t)
	t.Logf("the OSD's messenger has sent %d bytes over RDMA, and received %d", sent, received)
	if min(sent, received) < file {
		t.Errorf("the OSD's messenger has sent %d bytes over RDMA and received %d, want %d at least", sent, received, file)
	}
	if errors > 0 {
		t.Errorf("the OSD's messenger has counted %d errors of completions", errors)
	}
}

// command returns a command of the cluster, whose device has an address.
func (c *ceph) command(t *testing.T, addr string, line ...string) *exec.Cmd {
	t.Helper()
	cmd := runner(c.ctx, t, c.dir, "--link kernel:lo --no-shared --addr "+addr, line...)
	cmd.Env = append(cmd.Env, "CEPH_CONF="+filepath.Join(c.dir, "ceph.conf"), "HOME="+c.dir, "SOFTRNIC_TRANSPORT="+c.transport)
	return cmd
}

// do runs a command to its end, and returns its output.
func (c *ceph) do(t *testing.T, addr string, line ...string) string {
	t.Helper()
	cmd := c.command(t, addr, line...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", line, err, out, said.String())
	}
	return string(out)
}

// daemon starts a daemon, which runs until the test ends.
func (c *ceph) daemon(t *testing.T, addr, line string) {
	t.Helper()
	cmd := c.command(t, addr, strings.Fields(line)...)
	said, ended := proc.Start(t, cmd)
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		if err := <-ended; t.Failed() {
			t.Logf("%s: %v\n%s", line, err, said.String())
		}
	})
}

// messenger returns counters of the OSD's messenger: bytes sent and received over RDMA, and
// completions with errors.
func (c *ceph) messenger(t *testing.T) (sent, received, errors uint64) {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(c.dir, "osd.0.*.asok"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("admin sockets %s: %v", sockets, err)
	}
	var counters map[string]json.RawMessage
	if err := json.Unmarshal([]byte(c.do(t, cephClient, "ceph", "--admin-daemon", sockets[0], "perf", "dump")), &counters); err != nil {
		t.Fatal(err)
	}
	for name, text := range counters {
		if !strings.HasPrefix(name, "AsyncMessenger::RDMA") {
			continue
		}
		var n struct {
			Sent     uint64 `json:"tx_bytes"`
			Received uint64 `json:"rx_bytes"`
			TxErrors uint64 `json:"tx_total_wc_errors"`
			RxErrors uint64 `json:"rx_total_wc_errors"`
		}
		if err := json.Unmarshal(text, &n); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		sent, received, errors = sent+n.Sent, received+n.Received, errors+n.TxErrors+n.RxErrors
	}
	return sent, received, errors
}
