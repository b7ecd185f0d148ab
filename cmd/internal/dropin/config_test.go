package dropin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// fromEnv reads an environment of elements NAME=value.
func fromEnv(t *testing.T, env ...string) (Config, error) {
	t.Helper()
	return FromEnv(func(name string) string {
		for _, e := range env {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v
			}
		}
		return ""
	})
}

func TestTraceFromEnv(t *testing.T) {
	got, err := fromEnv(t, "SOFTRNIC_TRACE=/tmp/trace")
	if err != nil || got.Rails[0].Flags.Trace != "/tmp/trace" {
		t.Errorf("the trace goes to %q, %v", got.Rails[0].Flags.Trace, err)
	}
}

func TestSwitchesFromEnv(t *testing.T) {
	for name, of := range map[string]func(*node.Flags) bool{
		"SOFTRNIC_SELECTIVE_REPEAT": func(f *node.Flags) bool { return f.Selective },
		"SOFTRNIC_RXE_FLUSH":        func(f *node.Flags) bool { return f.RxeFlush },
	} {
		for value, want := range map[string]bool{"1": true, "0": false, "": false} {
			got, err := fromEnv(t, "SOFTRNIC_LINK=kernel:lo;shm", name+"="+value)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range got.Rails {
				if of(&r.Flags) != want {
					t.Errorf("%s=%s: rail %d has it %v", name, value, i, !want)
				}
			}
		}
	}
}

func TestCongestionFromEnv(t *testing.T) {
	for _, env := range []string{"", "SOFTRNIC_CONGESTION=1", "SOFTRNIC_CONGESTION_BY_DELAY=1"} {
		got, err := fromEnv(t, "SOFTRNIC_LINK=kernel:lo;shm", env)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range got.Rails {
			if r.Flags.Congestion != strings.HasSuffix(env, "CONGESTION=1") || r.Flags.ByDelay != strings.HasSuffix(env, "DELAY=1") {
				t.Errorf("%q: rail %d has DCQCN %t, by delay %t", env, i, r.Flags.Congestion, r.Flags.ByDelay)
			}
		}
	}
}

// TestSharedFromEnv: a rail on the machine's own sockets is shared unless SOFTRNIC_SHARED is 0.
// Other rails are not shared.
func TestSharedFromEnv(t *testing.T) {
	for env, want := range map[string][2]bool{"": {true, false}, "SOFTRNIC_SHARED=0": {false, false}} {
		got, err := fromEnv(t, "SOFTRNIC_LINK=kernel:lo;shm", env)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range got.Rails {
			if r.Flags.Shared != want[i] {
				t.Errorf("%q: rail %d is shared: %v, want %v", env, i, r.Flags.Shared, want[i])
			}
		}
	}
}

func TestFromEnv(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte("# a comment\n\nSOFTRNIC_LINK=shm:x\nSOFTRNIC_DEVICE=mlx5_0,\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env    []string
		medium string
		shared bool
		roce   string
	}{
		{nil, "kernel", true, "softrnic0"},
		{[]string{"SOFTRNIC_SHARED=0"}, "kernel", false, "softrnic0"},
		{[]string{"SOFTRNIC_LINK=kernel:lo"}, "kernel", true, "softrnic0"},
		{[]string{"SOFTRNIC_LINK=kernel:lo", "SOFTRNIC_SHARED=0"}, "kernel", false, "softrnic0"},
		{[]string{"SOFTRNIC_LINK=kernel:lo", "SOFTRNIC_SHARED=1"}, "kernel", true, "softrnic0"},
		{[]string{"SOFTRNIC_CONFIG=" + file}, "shm", false, "mlx5_0"},
		{[]string{"SOFTRNIC_CONFIG=" + file, "SOFTRNIC_DEVICE=a,b"}, "shm", false, "a"},
	} {
		got, err := fromEnv(t, c.env...)
		if err != nil {
			t.Errorf("%v: %v", c.env, err)
			continue
		}
		r := got.Rails[0]
		if r.Flags.Link.Medium != c.medium || r.Flags.Shared != c.shared || r.RoCE != c.roce || len(got.Rails) != 1 {
			t.Errorf("%v: link %s, shared %v, device %s; want %s, %v, %s", c.env, r.Flags.Link.Medium, r.Flags.Shared, r.RoCE, c.medium,
				c.shared, c.roce)
		}
	}
	for _, env := range []string{
		"SOFTRNIC_LINK=carrier-pigeon", "SOFTRNIC_ADDR=here", "SOFTRNIC_SHARED=perhaps", "SOFTRNIC_SELECTIVE_REPEAT=yes",
		"SOFTRNIC_DEVICE=a/b", "SOFTRNIC_DEVICE=,", "SOFTRNIC_DEVICE=a,a",
		"SOFTRNIC_SPEED=fast", "SOFTRNIC_SPEED=NaN", "SOFTRNIC_SPEED=99", "SOFTRNIC_SPEED=0", "SOFTRNIC_WIDTH=4",
		"SOFTRNIC_LINK=shm:a;shm:b;shm:c;d", "SOFTRNIC_ADDR=10.0.0.1/24;;;;;;;;", "SOFTRNIC_DEVICE=a;a", "SOFTRNIC_TRANSPORT=tcp",
		"SOFTRNIC_LOG=loud", "SOFTRNIC_CONFIG=/nonexistent",
	} {
		name, _, _ := strings.Cut(env, "=")
		if _, err := fromEnv(t, env); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, which does not name %s", env, err, name)
		}
	}
}

func TestSpeed(t *testing.T) {
	got, err := fromEnv(t, "SOFTRNIC_LINK=shm:a;shm:b", "SOFTRNIC_SPEED=100", "SOFTRNIC_WIDTH=2")
	if want := (node.Rate{Gbps: 100, Lanes: 2}); err != nil || got.Rails[0].Flags.Rate != want || got.Rails[1].Flags.Rate != want {
		t.Errorf("%v, want %v on both rails (%v)", got.Rails, want, err)
	}
	for _, width := range []string{"many", "0", "3", "12"} {
		_, err := fromEnv(t, "SOFTRNIC_SPEED=100", "SOFTRNIC_WIDTH="+width)
		if err == nil || !strings.Contains(err.Error(), "SOFTRNIC_WIDTH="+width) {
			t.Errorf("100 Gbit/s over %s lanes: %v", width, err)
		}
	}
}

// TestRails: the parts of several rails, and a single part for all rails.
func TestRails(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want string // the RoCE and iWARP device, link and addresses of each rail
	}{
		{[]string{"SOFTRNIC_LINK=shm:x", "SOFTRNIC_ADDR=10.0.0.1/24,fd00::1/64;10.0.1.1/24"},
			"softrnic0 softrnic0_iw shm [10.0.0.1/24 fd00::1/64]; softrnic1 softrnic1_iw shm [10.0.1.1/24]; "},
		{[]string{"SOFTRNIC_LINK=shm:x;pipe", "SOFTRNIC_DEVICE=mlx5_2,siw0"}, "mlx5_2 siw0 shm []; mlx5_3 siw1 pipe []; "},
		{[]string{"SOFTRNIC_LINK=shm:x;pipe", "SOFTRNIC_DEVICE=mlx5_0,mlx5_0_iw"}, "mlx5_0 mlx5_0_iw shm []; mlx5_1 mlx5_1_iw pipe []; "},
		{[]string{"SOFTRNIC_LINK=pipe", "SOFTRNIC_DEVICE=mlx5_0,;x,y;,z"}, "mlx5_0  pipe []; x y pipe [];  z pipe []; "},
		{[]string{"SOFTRNIC_RAIL_5=link=shm:x;addr=10.0.0.1/24,fd00::1/64", "SOFTRNIC_RAIL_1=" + RailSpec{Device: "mlx5_4,"}.Value(),
			"SOFTRNIC_LINK=pipe"}, "mlx5_4  kernel []; softrnic5 softrnic5_iw shm [10.0.0.1/24 fd00::1/64]; "},
		{[]string{"SOFTRNIC_RAIL_0=link=pipe", "SOFTRNIC_RAIL_1=link=shm", "SOFTRNIC_CARD=connectx7"}, "mlx5_0  pipe []; mlx5_1  shm []; "},
	} {
		got, err := fromEnv(t, c.env...)
		if err != nil {
			t.Errorf("%v: %v", c.env, err)
		}
		text := ""
		for _, r := range got.Rails {
			text += fmt.Sprintf("%s %s %s %v; ", r.RoCE, r.IWARP, r.Flags.Link.Medium, r.Flags.Addr)
		}
		if text != c.want {
			t.Errorf("%v:\n%s\nwant\n%s", c.env, text, c.want)
		}
	}
	for _, env := range [][]string{
		{"SOFTRNIC_RAIL_0=link=shm;name=x"}, {"SOFTRNIC_RAIL_0=shm"}, {"SOFTRNIC_RAIL_1=link=carrier-pigeon"},
		{"SOFTRNIC_RAIL_0=device=a,", "SOFTRNIC_RAIL_1=device=a,"},
		{"SOFTRNIC_RAIL_0=link=kernel:all", "SOFTRNIC_RAIL_3=link=shm"},
		{"SOFTRNIC_LINK=shm:a;shm:b", "SOFTRNIC_DEVICE=a;b;c"}, {"SOFTRNIC_LINK=shm:a;shm:b", "SOFTRNIC_ADDR=10.0.0.1/24"},
		{"SOFTRNIC_LINK=shm:a;shm:b;shm:c", "SOFTRNIC_DEVICE=a;b"},
		{"SOFTRNIC_LINK=shm:a;shm:b", "SOFTRNIC_DEVICE=mlx"},
	} {
		if _, err := fromEnv(t, env...); err == nil {
			t.Errorf("%v: no error", env)
		}
	}
}

// TestCaptureAndImpairFromEnv: each rail has a capture of its own, and the impairment.
func TestCaptureAndImpairFromEnv(t *testing.T) {
	pid := fmt.Sprint(os.Getpid())
	got, err := fromEnv(t, "SOFTRNIC_LINK=shm;shm:b", "SOFTRNIC_CAPTURE=/tmp/%p.pcapng", "SOFTRNIC_IMPAIR=loss=1%")
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range got.Rails {
		if want := fmt.Sprintf("/tmp/%s-%d.pcapng", pid, i+1); r.Flags.Capture != want {
			t.Errorf("rail %d is captured to %q, want %q", i, r.Flags.Capture, want)
		}
		if r.Flags.Impair == nil || r.Flags.Impair.Out.Loss != 0.01 {
			t.Errorf("rail %d: impairment %+v", i, r.Flags.Impair)
		}
	}
	if got, err := fromEnv(t, "SOFTRNIC_ALLOW=10.0.0.2, fd00::/8"); err != nil ||
		fmt.Sprint(got.Rails[0].Flags.Allow) != "[10.0.0.2/32 fd00::/8]" {
		t.Errorf("access control: %v, %v", got.Rails[0].Flags.Allow, err)
	}
	const key = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	if got, err := fromEnv(t, "SOFTRNIC_SECURE=node.key", "SOFTRNIC_PEERS=a="+key+"@192.0.2.1, "+key, "SOFTRNIC_SECURE_PORT=7"); err != nil ||
		got.Rails[0].Flags.Medium() != "wireguard" || got.Rails[0].Flags.Shared || len(got.Rails[0].Flags.Peer) != 2 ||
		got.Rails[0].Flags.Peer[0].Endpoint != "192.0.2.1:51820" || got.Rails[0].Flags.SecurePort != 7 {
		t.Errorf("a tunnel: %+v, %v", got.Rails, err)
	}
	for _, env := range [][]string{{"SOFTRNIC_PEERS=x"}, {"SOFTRNIC_SECURE_PORT=x"}, {"SOFTRNIC_DEVICE=a;b"}} {
		if _, err := fromEnv(t, append(env, "SOFTRNIC_SECURE=node.key")...); err == nil || !strings.Contains(err.Error(), "SOFTRNIC_") {
			t.Errorf("%s: %v", env, err)
		}
	}
	if _, err := fromEnv(t, "SOFTRNIC_ALLOW=10.0.0.0/"); err == nil || !strings.Contains(err.Error(), "SOFTRNIC_ALLOW") {
		t.Errorf("access for 10.0.0: %v", err)
	}
	if got, err = fromEnv(t, "SOFTRNIC_CAPTURE=/tmp/%p.pcapng"); err != nil || got.Rails[0].Flags.Capture != "/tmp/"+pid+".pcapng" ||
		got.Rails[0].Flags.Impair != nil {
		t.Errorf("one rail: %+v, %v", got.Rails[0].Flags, err)
	}
	if _, err := fromEnv(t, "SOFTRNIC_IMPAIR=loss=2"); err == nil || !strings.Contains(err.Error(), "SOFTRNIC_IMPAIR") {
		t.Errorf("a loss of 2: %v", err)
	}
}

// TestPositionedDevices: the names of devices in different positions differ.
func TestPositionedDevices(t *testing.T) {
	for value, want := range map[string]string{"": "softrnic3", "mlx5_4": "mlx5_3", "mlx5_0,mlx5_0_iw": "mlx5_3,mlx5_3_iw", "a,": "a3,",
		",b_iw": ",b3_iw", "a,b": "a3,b3"} {
		if got := PositionedDevices(value, 3); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
}
