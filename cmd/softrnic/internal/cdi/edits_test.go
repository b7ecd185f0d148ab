package cdi

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	runtime "tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
)

// inject gives a container of an image's environment the named devices of a specification, as a
// container runtime does.
func inject(t *testing.T, spec *specs.Spec, image []string, devices ...string) (*oci.Spec, error) {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "softrnic.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	cache, err := runtime.NewCache(runtime.WithSpecDirs(dir), runtime.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if errs := cache.GetErrors(); len(errs) != 0 {
		t.Fatalf("the specification is refused: %v", errs)
	}
	container := &oci.Spec{Process: &oci.Process{Env: image}, Linux: new(oci.Linux)}
	for i, name := range devices {
		devices[i] = Kind + "=" + name
	}
	_, err = cache.InjectDevices(container, devices...)
	return container, err
}

// rails reads the rails of a container as the libraries do.
func rails(t *testing.T, container *oci.Spec) (text string) {
	t.Helper()
	cfg, err := dropin.FromEnv(environment(specs.ContainerEdits{Env: container.Process.Env}))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range cfg.Rails {
		text += r.RoCE + "," + r.IWARP + " " + r.Flags.Link.Medium + ";"
	}
	return text
}

// TestInjected: a container has the devices that it asks for, in any combination, and its own
// variables.
func TestInjected(t *testing.T) {
	settings := Settings{Libraries: "/usr/lib/softrnic", Command: "/usr/bin/softrnic", Speed: "100"}
	spec, err := Spec(settings, dropin.RailSpec{}, dropin.RailSpec{Link: "shm", Device: "mlx5_1,"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		devices []string
		want    string
	}{
		{[]string{"0"}, "softrnic0,softrnic0_iw kernel;"},
		{[]string{"1"}, "mlx5_1, shm;"},
		{[]string{"1", "0"}, "softrnic0,softrnic0_iw kernel;mlx5_1, shm;"},
		{[]string{"all"}, "softrnic0,softrnic0_iw kernel;mlx5_1, shm;"},
		{[]string{"all", "0"}, "softrnic0,softrnic0_iw kernel;mlx5_1, shm;"},
	} {
		image := []string{"LD_LIBRARY_PATH=/usr/local/cuda/lib64", "LD_PRELOAD=libjemalloc.so"}
		got, err := inject(t, spec, slices.Clone(image), slices.Clone(c.devices)...)
		if err != nil {
			t.Errorf("%v: %v", c.devices, err)
			continue
		}
		if text := rails(t, got); text != c.want {
			t.Errorf("%v: the container has %s, want %s", c.devices, text, c.want)
		}
		for _, v := range append(image, "SOFTRNIC_SPEED=100") {
			if !slices.Contains(got.Process.Env, v) {
				t.Errorf("%v: the container lacks %s: %v", c.devices, v, got.Process.Env)
			}
		}
		mounts := map[string]string{}
		for _, m := range got.Mounts {
			mounts[m.Destination] = m.Source
			if !slices.Contains(m.Options, "ro") {
				t.Errorf("%v: the container can write to %s: %v", c.devices, m.Source, m.Options)
			}
		}
		if len(mounts) != 3 || mounts["/opt/softrnic/lib/softrnic"] != "/usr/lib/softrnic" ||
			mounts["/opt/softrnic/bin/softrnic"] != "/usr/bin/softrnic" ||
			mounts["/etc/ld.so.preload"] != "/usr/lib/softrnic/ld.so.preload" {
			t.Errorf("%v: mounts %v", c.devices, mounts)
		}
		if got.Hooks != nil || got.Linux.Devices != nil || got.Process.Capabilities != nil {
			t.Errorf("%v: the container got more: %+v", c.devices, got)
		}
	}
	if _, err := inject(t, spec, nil, "2"); err == nil {
		t.Error("there is a device 2")
	}
}

// TestVersion: the specification is of a version that old runtimes know. podman 4.3 knows 0.5.0.
func TestVersion(t *testing.T) {
	spec, err := Spec(Settings{Libraries: "/l", Command: "/c"}, dropin.RailSpec{})
	if err != nil || spec.Version > "0.5.0" {
		t.Errorf("version %s, %v; want at most 0.5.0", spec.Version, err)
	}
}

// TestRefused: a container does not get settings that the libraries would refuse.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		s     Settings
		rails []dropin.RailSpec
		want  string
	}{
		{Settings{Speed: "fast"}, []dropin.RailSpec{{}}, "SOFTRNIC_SPEED=fast"},
		{Settings{Transport: "tcp"}, []dropin.RailSpec{{}}, "SOFTRNIC_TRANSPORT=tcp"},
		{Settings{}, []dropin.RailSpec{{Link: "carrier-pigeon"}}, "carrier-pigeon"},
		{Settings{}, []dropin.RailSpec{{Link: "kernel:all"}, {Link: "kernel:all"}}, "link=kernel:all is a rail for each interface"},
		{Settings{}, []dropin.RailSpec{{Link: "kernel:all", Device: "a"}}, "two devices have the name a"},
		{Settings{}, []dropin.RailSpec{{Device: "a,b"}, {Device: "a,c"}}, "two devices have the name a"},
	} {
		if _, err := Edits(c.s, c.rails...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v %+v: %v, want an error with %q", c.s, c.rails, err, c.want)
		}
	}
	if edits, err := Edits(Settings{}, dropin.RailSpec{Link: "kernel:all"}); err != nil {
		t.Errorf("each interface of the container: %v, %v", edits, err)
	}
}
