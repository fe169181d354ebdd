package plan

// ProbeResult is what running a few samples showed.
type ProbeResult struct {
	Samples     int64    `json:"samples"`
	Tokens      int64    `json:"tokens"`
	Ratio       float64  `json:"ratio"`
	RatioSpread float64  `json:"ratio_spread"`
	RateSpread  float64  `json:"rate_spread"`
	Buckets     []Bucket `json:"buckets"` // by length, ascending
}

func (p ProbeResult) describe() string { return "a probe" }
