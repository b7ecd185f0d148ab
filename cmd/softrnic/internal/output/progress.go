package output

import (
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// NewProgress returns a progress bar that is shown only on a terminal.
func NewProgress(w io.Writer, steps int) *progressbar.ProgressBar {
	return progressbar.NewOptions(steps, append(options(w), progressbar.OptionSetPredictTime(false))...)
}

// NewCopy returns a progress bar of a copy of n bytes, or with n −1 of an unknown number. It is
// shown only on a terminal.
func NewCopy(w io.Writer, n int64) *progressbar.ProgressBar {
	return progressbar.NewOptions64(n, append(options(w), progressbar.OptionShowBytes(true))...)
}

func options(w io.Writer) []progressbar.Option {
	f, ok := w.(*os.File)
	visible := ok && term.IsTerminal(int(f.Fd()))
	return []progressbar.Option{progressbar.OptionSetWriter(w), progressbar.OptionSetVisibility(visible), progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetElapsedTime(false), progressbar.OptionShowCount()}
}

// Size formats n bytes in the largest unit that divides it.
func Size(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
