"""The `outrider` command: options in, one public function called, tables and errors out."""
