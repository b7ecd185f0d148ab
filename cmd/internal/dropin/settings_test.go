package dropin

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// samples has a value of each setting, which is not the default.
var samples = map[string]string{
	"LINK": "shm:a", "ADDR": "10.0.0.1/24,fd00::1/64", "SHARED": "0", "DEVICE": "mlx5_0,siw0", "SELECTIVE_REPEAT": "1", "RXE_FLUSH": "1",
	"CARD": "connectx7", "CONGESTION": "1", "CONGESTION_BY_DELAY": "1", "GUID": "0002:c903:0012:3456", "SPEED": "100", "WIDTH": "2",
	"TRANSPORT": "iwarp,roce", "LOG": "info", "TOP": "1", "TRACE": "/t",
	"CAPTURE": "/c", "IMPAIR": "loss=1%", "SECURE": "/k", "PEERS": "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=", "SECURE_PORT": "7",
	"TLS": "/cert,/key", "TLS_CA": "system", "TLS_NAME": "a.example", "ALLOW": "10.0.0.2,fd00::/8", "COUNTERS": "/n", "COMMAND": "/s",
	"PEERMEM": "1", "RUN": "7", "WHOLE": "/w", "FAULT": "reg_mr=ENOMEM",
}

// TestTable: each setting has a variable, and help unless it is softrnic's own. Its value is the
// same by flag and by variable, and passes to a program unchanged.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for f := range new(Settings).fields() {
		name, help, unset := f.Tag.Get("var"), f.Tag.Get("help"), f.Tag.Get("unset")
		short, ok := strings.CutPrefix(name, "SOFTRNIC_")
		if !ok || seen[name] || samples[short] == "" {
			t.Errorf("%s has the variable %q: must be a name of its own that begins with SOFTRNIC_, and have a sample in this test", f.Name, name)
			continue
		}
		seen[name] = true
		if unset != "" && !strings.Contains(help, "Default: "+unset) {
			t.Errorf("%s: the help does not say that the default is %s", name, unset)
		}
		var byVariable, byFlag Settings
		if err := byVariable.read(func(n string) string { return map[string]string{name: samples[short]}[n] }); err != nil {
			t.Error(err)
		}
		want := map[string]string{name: samples[short]}
		if got := maps.Collect(byVariable.Variables()); !maps.Equal(got, want) {
			t.Errorf("by a variable: %v, want %v", got, want)
		}
		if f.Tag.Get("kong") == "-" {
			continue
		}
		parser, err := kong.New(&byFlag)
		if err != nil {
			t.Fatal(err)
		}
		if help == "" {
			t.Errorf("%s has no help", name)
		}
		var args []string
		for _, flag := range parser.Model.Flags {
			if flag.Tag.Get("var") == name {
				args = []string{"--" + flag.Name + "=" + samples[short]}
				if own := cmp.Or(f.Tag.Get("name"), strings.ToLower(f.Name)); flag.Name != own {
					t.Errorf("%s: the flag is --%s, and errors name --%s: give the field the tag name", name, flag.Name, own)
				}
			}
		}
		if name == "SOFTRNIC_ADDR" { // repeated, not separated
			args = []string{"--addr=10.0.0.1/24", "--addr=fd00::1/64"}
		}
		if _, err := parser.Parse(args); err != nil {
			t.Error(err)
		}
		if got := maps.Collect(byFlag.Variables()); !maps.Equal(got, want) {
			t.Errorf("%v: %v, want %v", args, got, want)
		}
	}
	if len(seen) != len(samples) {
		t.Errorf("%d settings, and %d samples", len(seen), len(samples))
	}
}

// TestPrecedence: a flag precedes its variable, and the environment the file of SOFTRNIC_CONFIG.
func TestPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte("SOFTRNIC_DEVICE=c,\nSOFTRNIC_SPEED=25\nSOFTRNIC_LINK=shm\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"SOFTRNIC_CONFIG": file, "SOFTRNIC_DEVICE": "b,", "SOFTRNIC_SPEED": "100"}
	got, err := Settings{Device: "a,"}.Complete(func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	if r := got.Rails[0]; r.RoCE != "a" || r.Flags.Rate != (node.Rate{Gbps: 100}) || r.Flags.Link.Medium != "shm" {
		t.Errorf("device %s, rate %v, link %s", r.RoCE, r.Flags.Rate, r.Flags.Link.Medium)
	}
}

// TestSource: an error names the flag or the variable that has the value.
func TestSource(t *testing.T) {
	for _, c := range []struct {
		flags Settings
		env   string
		want  string
	}{
		{Settings{Device: "a/b"}, "", `--device a/b: "a/b" is not a device name`},
		{Settings{}, "SOFTRNIC_DEVICE=a/b", `SOFTRNIC_DEVICE=a/b: "a/b" is not a device name`},
		{Settings{Device: "a/b"}, "SOFTRNIC_DEVICE=c", `--device a/b: `},
		{Settings{Link: "shm:a;shm:b", Addr: []string{"10.0.0.1/24", "10.0.0.2/24"}}, "",
			"--addr 10.0.0.1/24,10.0.0.2/24: addresses for 1 of 2 rails"},
		{Settings{GUID: "x"}, "", `--guid x: "x" is not a GUID: must be like `},
		{Settings{}, "SOFTRNIC_WIDTH=4", "SOFTRNIC_WIDTH=4: the number of lanes is that of a speed"},
		{Settings{}, "SOFTRNIC_RAIL_0=link=pigeon", "SOFTRNIC_LINK=pigeon: "},
	} {
		_, err := c.flags.Complete(func(name string) string {
			value, _ := strings.CutPrefix(c.env, name+"=")
			if value == c.env {
				return ""
			}
			return value
		})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.env, err, c.want)
		}
	}
}

// TestWrongValues: the error has the variable, the value and what is allowed.
func TestWrongValues(t *testing.T) {
	for env, allowed := range map[string]string{
		"SOFTRNIC_LOG=loud": "must be debug, info, warn or error", "SOFTRNIC_TOP=yes": "must be 1 or 0",
		"SOFTRNIC_SHARED=perhaps": "must be 1 or 0", "SOFTRNIC_SPEED=fast": "must be a number of Gbit/s",
		"SOFTRNIC_SPEED=99": "2.5, 5, 10", "SOFTRNIC_WIDTH=3": "must be 1, 2, 4, 8 or 12", "SOFTRNIC_SECURE_PORT=0": "must be 1 to 65535",
		"SOFTRNIC_TRANSPORT=tcp": "must be roce, iwarp, or both", "SOFTRNIC_RUN=x": "must be a number", "SOFTRNIC_PEERS=x": "must be 32 bytes",
		"SOFTRNIC_CARD=connectx1": "must be one of bcm57508", "SOFTRNIC_ADDR=here": "must be like 10.0.0.9/24",
		"SOFTRNIC_GUID=1": "must be like 0002:c903:0012:3456", "SOFTRNIC_GUID=0000000000000000": "0 is no GUID",
		"SOFTRNIC_GUID=0002c90300123456;0002c90300123457": "a device of two rails",
	} {
		if _, err := fromEnv(t, env); err == nil || !strings.HasPrefix(err.Error(), env+": ") || !strings.Contains(err.Error(), allowed) {
			t.Errorf("%s: %v, want %q", env, err, allowed)
		}
	}
}

// TestGUIDs: each rail has its GUID, or forms it from the MAC address.
func TestGUIDs(t *testing.T) {
	const links = "SOFTRNIC_LINK=shm:a;shm:b"
	for env, want := range map[string][]string{
		"SOFTRNIC_GUID=": {"0000:0000:0000:0000", "0000:0000:0000:0000"},
		"SOFTRNIC_GUID=0002c90300123456;0x0002c90300123458": {"0002:c903:0012:3456", "0002:c903:0012:3458"},
	} {
		got, err := fromEnv(t, links, env)
		if err != nil {
			t.Errorf("%s: %v", env, err)
			continue
		}
		var guids []string
		for _, r := range got.Rails {
			guids = append(guids, fmt.Sprint(r.Flags.GUID))
		}
		if !slices.Equal(guids, want) {
			t.Errorf("%s: %v, want %v", env, guids, want)
		}
	}
	if _, err := fromEnv(t, links, "SOFTRNIC_GUID=0002c90300123456"); err == nil || !strings.Contains(err.Error(), "GUIDs for 1 of 2 rails") {
		t.Errorf("a GUID for two rails: %v", err)
	}
}
