package tests

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestPlatforms: all packages and their tests pass the type checker on each platform. That takes a
// tenth of the time of go vet, which would compile them. The long run vets them.
func TestPlatforms(t *testing.T) {
	gate.System(t)
	for _, platform := range []string{"linux/386", "linux/arm", "linux/arm64", "darwin/arm64", "freebsd/amd64", "windows/amd64"} {
		t.Run(platform, func(t *testing.T) {
			goos, goarch, _ := strings.Cut(platform, "/")
			all, err := packages.Load(&packages.Config{
				Dir: "..", Mode: packages.LoadAllSyntax, Tests: true, //nolint:staticcheck // the sum of what a type checker needs
				Env: append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
			}, "./...")
			if err != nil {
				t.Fatal(err)
			}
			packages.Visit(all, nil, func(p *packages.Package) {
				for _, err := range p.Errors {
					t.Error(err)
				}
			})
		})
	}
}
