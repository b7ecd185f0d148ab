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

func TestSelectiveRepeatFromEnv(t *testing.T) {
	for value, want := range map[string]bool{"1": true, "0": false, "": false} {
		got, err := fromEnv(t, "SOFTRNIC_LINK=kernel:lo;shm", "SOFTRNIC_SELECTIVE_REPEAT="+value)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range got.Rails {
			if r.Flags.Selective != want {
				t.Errorf("SOFTRNIC_SELECTIVE_REPEAT=%s: rail %d has it %v", value, i, r.Flags.Selective)
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
		{[]string{"SOFTRNIC_LINK=pipe", "SOFTRNIC_DEVICE=mlx5_0,;x,y;,z"}, "mlx5_0  pipe []; x y pipe [];  z pipe []; "},
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
		{"SOFTRNIC_LINK=shm:a;shm:b", "SOFTRNIC_DEVICE=a;b;c"}, {"SOFTRNIC_LINK=shm:a;shm:b", "SOFTRNIC_ADDR=10.0.0.1/24"},
		{"SOFTRNIC_LINK=shm:a;shm:b;shm:c", "SOFTRNIC_DEVICE=a;b"},
		{"SOFTRNIC_LINK=shm:a;shm:b", "SOFTRNIC_DEVICE=mlx"},
	} {
		if _, err := fromEnv(t, env...); err == nil {
			t.Errorf("%v: no error", env)
		}
	}
}
