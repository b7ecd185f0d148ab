package cdi

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
)

// install creates a directory with the names of all libraries, and a static program beside it.
func install(t *testing.T) Settings {
	t.Helper()
	dir := t.TempDir()
	s := Settings{Libraries: filepath.Join(dir, "lib"), Command: filepath.Join(dir, "softrnic")}
	files := map[string]string{filepath.Join(s.Libraries, dropin.PreloadFile): dropin.Preload(), s.Command: staticELF()}
	for line := range strings.Lines(dropin.Preload()) {
		files[filepath.Join(s.Libraries, strings.TrimPrefix(strings.TrimSpace(line), dropin.ContainerLibraries))] = "x"
	}
	files[filepath.Join(s.Libraries, dropin.Libraries[0])] = ""
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// staticELF returns the header of a program without sections.
func staticELF() string {
	h := make([]byte, 64)
	copy(h, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(h[16:], 2)  // ET_EXEC
	binary.LittleEndian.PutUint16(h[18:], 62) // EM_X86_64
	binary.LittleEndian.PutUint32(h[20:], 1)
	binary.LittleEndian.PutUint16(h[52:], 64)
	binary.LittleEndian.PutUint16(h[58:], 64)
	return string(h)
}

// TestWrittenSpecification: what the command writes is what Spec returns, and nothing is wrong with
// it.
func TestWrittenSpecification(t *testing.T) {
	s := install(t)
	dir := filepath.Join(t.TempDir(), "new", "cdi")
	file := filepath.Join(dir, "softrnic.json")
	for range 2 { // an existing file is replaced
		code, stdout, stderr := program.Run(t.Context(), nil, "cdi", "--libs", s.Libraries, "--output", file, "--rails", "2", "--device",
			"mlx5_0,", "--link", "kernel:eth0", "--link", "kernel:eth1")
		if code != 0 || stdout != "" || stderr != "" {
			t.Fatalf("exit code %d, %q, %q", code, stdout, stderr)
		}
	}
	for _, name := range []string{"other.yml", "softrnic"} { // the runtime would not read it
		code, _, stderr := program.Run(t.Context(), nil, "cdi", "--libs", s.Libraries, "--output", filepath.Join(dir, name))
		if code != cli.ExitUsage || !strings.Contains(stderr, "must end in .json or .yaml") {
			t.Errorf("%s: exit code %d: %s", name, code, stderr)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"SOFTRNIC_RAIL_0=link=kernel:eth0;device=mlx5_0,"`, `"SOFTRNIC_RAIL_1=link=kernel:eth1;device=mlx5_1,"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the specification lacks %s:\n%s", want, text)
		}
	}
	code, stdout, stderr := program.Run(t.Context(), nil, "cdi", "--libs", s.Libraries, "--rails", "2", "--device", "mlx5_0,",
		"--link", "kernel:eth0", "--link", "kernel:eth1")
	if code != 0 || stdout != string(text) || stderr != "" {
		t.Errorf("on stdout: exit code %d, %q\n%s", code, stderr, stdout)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
}

// TestCheck: each thing that may be wrong is found, and named in a sentence.
func TestCheck(t *testing.T) {
	machine = t.TempDir()
	defer func() { machine = "/" }()
	for _, c := range []struct {
		name  string
		wrong func(s *Settings, file string) error
		args  []string
		want  string // "": nothing is wrong
	}{
		{name: "nothing"},
		{"no file", func(_ *Settings, file string) error { return os.Remove(file) }, nil,
			"has a device softrnic.dev/rnic: softrnic cdi --output"},
		{"not JSON", func(_ *Settings, file string) error { return os.WriteFile(file, []byte(Kind+"{"), 0o600) }, nil, "Runtimes refuse "},
		{"of another vendor", func(_ *Settings, file string) error {
			return os.WriteFile(filepath.Join(filepath.Dir(file), "other.json"), []byte("{"), 0o600)
		}, nil, ""},
		{"a library", func(s *Settings, _ string) error { return os.Remove(filepath.Join(s.Libraries, "libibverbs.so.1")) }, nil,
			"libibverbs.so.1: no such file"},
		{"an empty library", func(s *Settings, _ string) error {
			return os.Truncate(filepath.Join(s.Libraries, "libibverbs.so.1"), 0)
		}, nil,
			"libibverbs.so.1 is empty"},
		{"the list", func(s *Settings, _ string) error {
			return os.WriteFile(filepath.Join(s.Libraries, dropin.PreloadFile), []byte("/lib/a.so\n"), 0o600)
		}, nil, "does not name the libraries of this version"},
		{"the command", func(s *Settings, _ string) error { return os.Remove(s.Command) }, nil, "names the command"},
		{"old", func(_ *Settings, file string) error { return replaceIn(file, "/opt/softrnic/bin", "/usr/bin") }, nil,
			"is of another version of softrnic"},
		{"settings", func(_ *Settings, file string) error { return replaceIn(file, "link=kernel", "link=pigeon") }, nil,
			"the libraries refuse device 0: SOFTRNIC_LINK=pigeon: "},
		{"where", func(*Settings, string) error { return nil }, []string{"--output", "/somewhere/softrnic.json"},
			"/somewhere/softrnic.json is not in a directory that runtimes read"},
	} {
		s := install(t)
		spec, err := Spec(s, dropin.RailSpec{})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		file := filepath.Join(dir, "softrnic.json")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if c.wrong != nil {
			if err := c.wrong(&s, file); err != nil {
				t.Fatal(err)
			}
		}
		code, stdout, stderr := program.Run(t.Context(), nil, append([]string{"cdi", "--check", "--dir", dir}, c.args...)...)
		switch {
		case stderr != "":
			t.Errorf("%s: stderr %q", c.name, stderr)
		case c.want == "":
			if code != 0 || stdout != "Nothing is wrong with softrnic.dev/rnic=0, softrnic.dev/rnic=all.\n" {
				t.Errorf("%s: exit code %d, %q", c.name, code, stdout)
			}
		case code != 1 || !strings.Contains(stdout, c.want):
			t.Errorf("%s: exit code %d, %q; want a line with %q", c.name, code, stdout, c.want)
		}
	}
}

func replaceIn(file, from, to string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strings.Replace(string(text), from, to, 1)), 0o600)
}

// TestCheckRuntimes: the configuration of a runtime that does not read the specifications.
func TestCheckRuntimes(t *testing.T) {
	dirs := []string{"/etc/cdi", "/var/run/cdi"}
	for _, c := range []struct{ file, text, want string }{
		{"etc/containerd/config.toml", "enable_cdi = false\n", "turns CDI off"},
		{"etc/containerd/config.toml", "# enable_cdi = false\nenable_cdi = true\n", ""},
		{"etc/containerd/config.toml", "  cdi_spec_dirs = [\"/opt/cdi\",\n  \"/x\"]\n", "reads other directories"},
		{"etc/containerd/config.toml", `cdi_spec_dirs = ["/etc/cdi"]`, ""},
		{"etc/docker/daemon.json", `{"features": {"cdi": false}}`, "turns CDI off"},
		{"etc/docker/daemon.json", `{"cdi-spec-dirs": ["/opt/cdi"]}`, "reads other directories"},
		{"etc/containerd/config.toml", "version = 3\n    cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']\n", ""},
		{"etc/containerd/config.toml", "cdi_spec_dirs = ['/opt/cdi']", "reads other directories"},
		{"etc/crio/crio.conf", `cdi_spec_dirs = ["/var/run/cdi"]`, ""},
	} {
		root := t.TempDir()
		name := filepath.Join(root, c.file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(c.text), 0o600)); err != nil {
			t.Fatal(err)
		}
		var found problems
		checkRuntimes(root, dirs, &found)
		if got := strings.Join(found, "\n"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q: %q, want %q", c.file, c.text, got, c.want)
		}
	}
}

// TestCheckContainerd: containerd 1.7 has CDI off by default, which matters to the kubelet.
func TestCheckContainerd(t *testing.T) {
	const want = "containerd 1.7 gives pods no CDI devices"
	for _, c := range []struct{ version, config, kubelet, want string }{
		{"containerd github.com/containerd/containerd v1.7.27 05044ec", "version = 2\n", "var/lib/kubelet", want},
		{"containerd containerd.io 1.7.27 05044ec", "", "var/lib/kubelet", want},
		{"containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6", "# enable_cdi = true\n", "var/lib/kubelet", want},
		{"containerd github.com/containerd/containerd v1.7.27 05044ec", "", "var/lib/docker", ""},
		{"containerd containerd.io 1.7.27 05044ec", "disabled_plugins = [\"cri\"]\n", "var/lib/kubelet", ""},
		{"containerd github.com/containerd/containerd v1.7.27 05044ec", "enable_cdi = true\n", "var/lib/kubelet", ""},
		{"containerd github.com/containerd/containerd/v2 v2.1.7 05044ec", "version = 2\n", "var/lib/kubelet", ""},
	} {
		root := t.TempDir()
		files := map[string]string{"usr/bin/containerd": "#!/bin/sh\necho '" + c.version + "'\n", "etc/containerd/config.toml": c.config,
			c.kubelet + "/config": ""}
		for name, text := range files {
			name = filepath.Join(root, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		var found problems
		checkRuntimes(root, []string{"/etc/cdi"}, &found)
		if got := strings.Join(found, "\n"); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"2.9", "2.34", true}, {"2.34", "2.34", false}, {"2.34", "2.2.5", false}, {"", "2.2.5", true}, {"2.34", "PRIVATE", false}} {
		if got := older(c.a, c.b); got != c.want {
			t.Errorf("%q is older than %q: %v", c.a, c.b, got)
		}
	}
}
