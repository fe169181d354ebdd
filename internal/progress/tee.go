package progress

// Tee reports to several reporters.
type Tee []Reporter

var _ Reporter = Tee{}

// Start implements Reporter.
func (t Tee) Start(p Phase) { t.each(func(r Reporter) { r.Start(p) }) }

// Add implements Reporter.
func (t Tee) Add(d Delta) { t.each(func(r Reporter) { r.Add(d) }) }

// SetTotal implements Reporter.
func (t Tee) SetTotal(n int64) { t.each(func(r Reporter) { r.SetTotal(n) }) }

// Gauge implements Reporter.
func (t Tee) Gauge(name string, x float64) { t.each(func(r Reporter) { r.Gauge(name, x) }) }

// Note implements Reporter.
func (t Tee) Note(f string, a ...any) { t.each(func(r Reporter) { r.Note(f, a...) }) }

// Waiting implements Reporter.
func (t Tee) Waiting(what string) { t.each(func(r Reporter) { r.Waiting(what) }) }

// Finish implements Reporter.
func (t Tee) Finish() { t.each(func(r Reporter) { r.Finish() }) }

func (t Tee) each(fn func(Reporter)) {
	for _, r := range t {
		fn(r)
	}
}
