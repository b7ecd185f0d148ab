//go:build linux && amd64

package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// TestContractOfLinux runs the program of TestContract in tests/system/dropin on rxe. For each row
// of the table of kernels, testdata/contract_rxe-LINUX.txt in that directory lists the differences
// to SoftRNIC; SOFTRNIC_REPORT=1 writes it.
func TestContractOfLinux(t *testing.T) {
	gate.System(t)
	p := cmPeer(t, 2, verbs.RoCEv2)
	const testdata = "../dropin/testdata/"
	program := filepath.Join(t.TempDir(), "contract")
	if out, err := exec.Command("gcc", "-O2", "-o", program, testdata+"contract.c", "-libverbs", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if err := p.Put(ctx, "/tmp/contract", text); err != nil {
		t.Fatal(err)
	}
	out, code, err := p.Exec(ctx, "chmod +x /tmp/contract; /tmp/contract")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "ok: ") {
			got.WriteString(line)
		}
	}
	t.Logf("exit status %d\n%s", code, got.String())
	file := fmt.Sprintf("%scontract_rxe-%v.txt", testdata, p.Kernel.Linux)
	if os.Getenv("SOFTRNIC_REPORT") != "" {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("rxe differs from %s:\n%s", file, got.String())
	}
}
