package kubernetes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
)

var program clitest.Program = func() any {
	return &struct {
		Kubernetes Command `cmd:""`
	}{}
}

func TestRail(t *testing.T) {
	var r Rail
	err := r.UnmarshalText([]byte("name=fast; link=kernel:net1;addr=10.0.0.1,fd00::1;device=mlx5_0,;network=a;interface=eth1"))
	want := Rail{"fast", dropin.RailSpec{Link: "kernel:net1", Addr: "10.0.0.1,fd00::1", Device: "mlx5_0,"}, "a", "eth1"}
	if err != nil || r != want {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []string{"", "link=kernel", "name=A", "name=-a", "name=a;mtu=5", "name=" + strings.Repeat("a", 33), "name"} {
		if err := r.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// TestErrors: what is wrong with the flags is said at once.
func TestErrors(t *testing.T) {
	m := newMachine(t, DefaultRail)
	files := []string{"kubernetes", "--libs", m.Settings.Libraries, "--softrnic", m.Settings.Command, "--cdi-dir", m.CDIDir}
	for want, args := range map[string][]string{
		"--devices 0: must be 1 to 1024": {"--devices", "0"},
		"two rails have the name a":      {"--rail", "name=a", "--rail", "name=a"},
		"carrier-pigeon":                 {"--rail", "name=a;link=carrier-pigeon"},
		"SOFTRNIC_SPEED":                 {"--speed", "99"},
		"9 rails: must be at most 8":     strings.Fields("--rail name=" + strings.Join(strings.Split("abcdefghi", ""), " --rail name=")),
		"two devices have the name x0":   {"--rail", "name=a;device=x0,x1"},
		"is a rail for each interface":   {"--rail", "name=a;link=kernel:all", "--rail", "name=b"},
		"/no/such/dir":                   {"--kubelet-dir", "/no/such/dir"},
		"must be name=, link=, addr=":    {"--rail", "name=a;mtu=9000"},
	} {
		all := append(files[:len(files):len(files)], args...)
		code, _, stderr := program.Run(t.Context(), nil, all...)
		if code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
}

// TestInstall: what is installed is complete, and a second time nothing changes. Another content
// goes to another directory.
func TestInstall(t *testing.T) {
	m := newMachine(t, DefaultRail)
	from := m.Settings
	to := filepath.Join(t.TempDir(), "a", "b")
	f := Flags{Libs: from.Libraries, Program: from.Command, Install: to, CDIDir: m.CDIDir, Devices: 1}
	var libs []string
	for range 2 {
		n, err := f.Node()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.files(); err != nil {
			t.Error(err)
		}
		if !strings.HasPrefix(n.Settings.Libraries, to+"/") || dropin.CommandBeside(n.Settings.Libraries) != n.Settings.Command {
			t.Errorf("installed to %+v", n.Settings)
		}
		got, err := os.ReadFile(filepath.Join(n.Settings.Libraries, "names", "libibverbs.so"))
		if err != nil || !strings.HasSuffix(string(got), "names/libibverbs.so") {
			t.Errorf("%q, %v", got, err)
		}
		libs = append(libs, n.Settings.Libraries)
	}
	// A crash of the node has left an empty file, and one is missing.
	n, err := f.Node()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(libs[0], "names", "libibverbs.so"), 0); err != nil || n.files() == nil {
		t.Errorf("an empty library is not found: %v", err)
	}
	if err := os.Remove(n.Settings.Command); err != nil {
		t.Fatal(err)
	}
	if n, err = f.Node(); err != nil || n.files() != nil || n.Settings.Libraries != libs[0] {
		t.Errorf("installed again: %v, %v", err, n.files())
	}
	write(t, filepath.Join(from.Libraries, "new"))
	n, err = f.Node()
	if err != nil || libs[0] != libs[1] || n.Settings.Libraries == libs[0] {
		t.Errorf("installed to %s, then %s, with another file %s: %v", libs[0], libs[1], n.Settings.Libraries, err)
	}
	entries, err := os.ReadDir(to)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v: want two directories", entries, err)
	}
}
