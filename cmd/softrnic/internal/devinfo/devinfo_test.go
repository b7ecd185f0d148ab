package devinfo

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestDevinfo(t *testing.T) {
	args := []string{"devinfo", "--addr", "10.0.0.9/24", "--addr", "fd00::9/64", "--mac", "02:00:00:00:00:09", "--mtu", "1500"}
	code, brief, stderr := program.Run(t.Context(), nil, args...)
	if code != 0 || stderr != "" || strings.Contains(brief, "GID") {
		t.Fatalf("exit code %d, stderr %q, stdout:\n%s", code, stderr, brief)
	}
	code, full, stderr := program.Run(t.Context(), nil, append(args, "-v")...)
	if code != 0 || stderr != "" {
		t.Fatalf("-v: exit code %d, stderr %q", code, stderr)
	}
	for _, want := range []string{
		"\ttransport:\t\t\tInfiniBand (0)\n",
		"\twire_protocols:\t\t\tRoCEv2, iWARP\n",
		"\tnode_guid:\t\t\t0000:00ff:fe00:0009\n",
		"\t\tport:\t1\n",
		"\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n",
		"\t\t\tactive_mtu:\t\t1024 (3)\n",
		"\t\t\tGID[  0]:\t\tfe80::ff:fe00:9, RoCE v2\n",
		"\t\t\tGID[  1]:\t\t::ffff:10.0.0.9, RoCE v2\n",
		"\t\t\tGID[  2]:\t\tfd00::9, RoCE v2\n",
		"\t\t\tGID[128]:\t\tfe80::ff:fe00:9, RoCE v1\n",
		"\t\t\tGID[130]:\t\tfd00::9, RoCE v1\n",
	} {
		if !strings.Contains(full, want) {
			t.Errorf("-v: no line %q in:\n%s", want, full)
		}
	}
	for line := range strings.Lines(brief) {
		if line != "\n" && !strings.Contains(full, line) && !strings.HasPrefix(line, "hca_id") {
			t.Errorf("-v lacks the line %q", line)
		}
	}
	code, stdout, _ := program.Run(t.Context(), nil, append(args, "--json")...)
	var info struct {
		Ports []struct {
			State string
			GIDs  []struct{ GID, Type string }
		}
	}
	if err := json.Unmarshal([]byte(stdout), &info); code != 0 || err != nil {
		t.Fatalf("--json: exit code %d, %v in:\n%s", code, err, stdout)
	}
	if len(info.Ports) != 1 || info.Ports[0].State != "PORT_ACTIVE" || len(info.Ports[0].GIDs) != 6 ||
		info.Ports[0].GIDs[2].GID != "fd00::9" || info.Ports[0].GIDs[4].Type != "RoCE v1" {
		t.Errorf("--json: %+v", info)
	}
}
